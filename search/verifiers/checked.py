"""Verifier by checker: finished paths whose answer is right score 1, others 0. For games, proofs and upper bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from search.answers import extract
from search.checkers.grade import grade
from search.ports import Candidate
from search.types import Verdict


@dataclass(frozen=True, slots=True)
class AnswerCheck:
    """Unfinished paths have no score. A problem with neither checker nor reference is a verdict with an error.

    With a reference answer this is an oracle: it says what a perfect verifier would be worth, nothing more.
    """

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    async def score(self, batch: Sequence[Candidate]) -> list[Verdict]:
        return [self._one(candidate) for candidate in batch]

    def _one(self, candidate: Candidate) -> Verdict:
        if not candidate.complete:
            return Verdict(None, "checker")
        right = grade(candidate.problem, extract(candidate.text, candidate.problem.kind))
        if right is None:
            return Verdict(None, "checker", error=f"problem {candidate.problem.id!r} has no answer to check against")
        return Verdict(float(right), "checker")
