"""The model judges its own branch: P(yes) of a question appended to the branch, so that the branch's KV is reused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from search.ports import Candidate, Pool
from search.prompts import ANSWER_QUESTION, STEP_QUESTION
from search.types import Score, ScoreRequest, Verdict


@dataclass(frozen=True, slots=True)
class SelfEvaluation:
    """P(yes) by continuation; one question for finished answers, one for steps."""

    pool: Pool
    step_question: str = STEP_QUESTION
    answer_question: str = ANSWER_QUESTION

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"score"})

    def tokens_to_score(self, batch: Sequence[Candidate]) -> int:
        """The question and the path's last token, for each path."""
        tokens = {complete: self.pool.count_tokens(text) + 1 for complete, text in self._questions().items()}
        return sum(tokens[candidate.complete] for candidate in batch)

    async def score(self, batch: Sequence[Candidate]) -> list[Verdict]:
        questions = self._questions()
        requests = [
            ScoreRequest(f"{c.problem.id}/{c.node_id}", c.context, questions[c.complete], c.engine) for c in batch
        ]
        return [_verdict(score) for score in await self.pool.score(requests)]

    def _questions(self) -> dict[bool, str]:
        """Rendered question by whether the path is complete."""
        return {True: self.pool.question(self.answer_question), False: self.pool.question(self.step_question)}


def _verdict(score: Score) -> Verdict:
    return Verdict(score.p_yes, "self_evaluation", score.cost, score.error)
