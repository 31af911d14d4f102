"""The model judges its own branch: P(yes) of a question about it, by default behind the branch's own KV."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from search.ports import Candidate, Context, Pool
from search.prompts import ANSWER_QUESTION, STEP_QUESTION, ChatPrompt
from search.types import Cost, ExitRule, Problem, Score, ScoreRequest, Verdict
from search.verifiers.asking import Asking, asking
from search.verifiers.prior import without_prior

_NAME = "self_evaluation"


@dataclass(frozen=True, slots=True)
class SelfEvaluation:
    """P(yes) of one question for finished answers, another one for steps.

    prompt: "continuation" asks behind the branch's own KV; "separate" in a chat of its own (`search.verifiers.asking`),
    for verifiers that need one. debias: take off the prior that the model has for yes where there is nothing to judge
    (`search.verifiers.prior`); it is read in full, once a question. layer_exit: CGEE level 2, off by default.
    chat: the branches' own template. priors: those that are known, by question; filled here.
    """

    pool: Pool
    step_question: str = STEP_QUESTION
    answer_question: str = ANSWER_QUESTION
    prompt: Literal["continuation", "separate"] = "continuation"
    debias: bool = False
    layer_exit: ExitRule | None = None
    chat: ChatPrompt = field(default_factory=ChatPrompt)
    priors: dict[str, float] = field(default_factory=dict, repr=False, compare=False)
    _measuring: asyncio.Lock = field(default_factory=asyncio.Lock, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _ = self._asking

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"score"})

    def tokens_to_score(self, batch: Sequence[Candidate]) -> int:
        """What is read behind held paths: each path's last token and the text of its question."""
        texts = Counter(self._asking.about(c, self._question(c))[1] for c in batch)
        return sum(count * (self.pool.count_tokens(text) + 1) for text, count in texts.items())

    def kept(self, problem: Problem) -> Sequence[Context]:
        """Paths that only this problem's verification used."""
        return self._asking.kept(problem)

    async def score(self, batch: Sequence[Candidate]) -> list[Verdict]:
        cost = await self._measure({self._question(c) for c in batch}) if self.debias else Cost()
        requests = [self._request(candidate) for candidate in batch]
        scores = await self.pool.score(requests)
        verdicts = [self._verdict(self._question(c), score) for c, score in zip(batch, scores, strict=True)]
        if verdicts and cost != Cost():
            verdicts[0] = replace(verdicts[0], cost=verdicts[0].cost + cost)
        return verdicts

    @property
    def _asking(self) -> Asking:
        return asking(self.prompt, self.pool, self.chat)

    def _question(self, candidate: Candidate) -> str:
        return self.answer_question if candidate.complete else self.step_question

    def _request(self, candidate: Candidate) -> ScoreRequest:
        context, text = self._asking.about(candidate, self._question(candidate))
        return ScoreRequest(
            f"{candidate.problem.id}/{candidate.node_id}", context, text, candidate.engine, self.layer_exit
        )

    async def _measure(self, questions: set[str]) -> Cost:
        """Read the prior of questions that have none yet; what that cost. A failure is no prior, and tried again."""
        async with self._measuring:
            missing = sorted(questions - self.priors.keys())
            asked = [self._asking.about_nothing(question) for question in missing]
            requests = [ScoreRequest(f"prior/{i}", context, text) for i, (context, text) in enumerate(asked)]
            scores = await self.pool.score(requests) if requests else []
            found = {q: s.p_yes for q, s in zip(missing, scores, strict=True) if s.p_yes is not None}
            self.priors.update(found)
            await self.pool.release([context for context, _ in asked])
        return sum((score.cost for score in scores), Cost())

    def _verdict(self, question: str, score: Score) -> Verdict:
        p_yes, error = score.p_yes, score.error
        if self.debias and p_yes is not None:
            prior = self.priors.get(question)
            p_yes = None if prior is None else without_prior(p_yes, prior)
            error = "the content-free prior could not be read" if prior is None else error
        return Verdict(p_yes, _NAME, score.cost, error)
