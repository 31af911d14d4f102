"""The model chooses among the new paths: the vote of Tree of Thoughts (Yao et al. 2023), read instead of sampled.

All paths of a batch are listed in one prompt; P(yes) of "is this one the most promising?" for each, as shares of their
sum, is the expected share of the votes. Nothing is generated, and the list is read once and dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from search.ports import Candidate, Pool
from search.prompts import VOTE, VOTE_QUESTION, VOTE_READY
from search.types import Score, ScoreRequest, Verdict


@dataclass(frozen=True, slots=True)
class VoteEvaluation:
    """Shares say which path of a batch is better, and nothing about another batch."""

    pool: Pool

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"score"})

    async def score(self, batch: Sequence[Candidate]) -> list[Verdict]:
        if not batch:
            return []
        listed = "\n\n".join(f"Choice {i}:\n{candidate.text.strip()}" for i, candidate in enumerate(batch, 1))
        prompt = VOTE.format(problem=batch[0].problem.text.strip(), choices=listed)
        context = (self.pool.encode([{"role": "user", "content": prompt}]), self.pool.tokens(VOTE_READY))
        requests = [
            ScoreRequest(f"{c.problem.id}/{c.node_id}/{i}", context, self.pool.question(VOTE_QUESTION.format(i=i)))
            for i, c in enumerate(batch, 1)
        ]
        try:
            scores = await self.pool.score(requests)
        finally:
            await self.pool.release([context[:1]])
        total = sum(score.p_yes for score in scores if score.p_yes is not None)
        return [_verdict(score, total, len(batch)) for score in scores]


def _verdict(score: Score, total: float, count: int) -> Verdict:
    if score.p_yes is None:
        return Verdict(None, "vote", score.cost, score.error or "no score")
    return Verdict(score.p_yes / total if total > 0 else 1 / count, "vote", score.cost, score.error)
