"""Verifiers that need no model: a callable of the user's, or the branch's own confidence."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from search.ports import Candidate, KeepVerdict
from search.types import Verdict
from search.verifiers.sound import piecewise
from search.verifiers.threads import in_thread


@dataclass(frozen=True, slots=True)
class FunctionVerifier:
    """`fn(problem text, path text) -> score in [0, 1]`, called in a thread beside the search.

    An exception or another value is a verdict with an error. timeout_s: a call that takes longer is given up; Python
    cannot end a thread, so use `CommandVerifier` for code that may hang often.
    """

    fn: Callable[[str, str], float]
    timeout_s: float | None = None

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    async def score(self, batch: Sequence[Candidate]) -> list[Verdict]:
        return await piecewise(self, batch)

    async def score_each(self, batch: Sequence[Candidate], keep: KeepVerdict) -> None:
        for i, candidate in enumerate(batch):
            keep(i, await self._within(candidate))

    async def _within(self, candidate: Candidate) -> Verdict:
        try:
            async with asyncio.timeout(self.timeout_s):
                return await in_thread(lambda: self._one(candidate))
        except TimeoutError:
            return Verdict(None, self._name, error=f"{self._name} did not return within {self.timeout_s:g} s")

    @property
    def _name(self) -> str:
        return str(getattr(self.fn, "__name__", "function"))

    def _one(self, candidate: Candidate) -> Verdict:
        name = self._name
        try:
            score = float(self.fn(candidate.problem.text, candidate.text))
        except BaseException as error:  # the user's code may raise anything; the search goes on without this score
            return Verdict(None, name, error=f"{name} raised {type(error).__name__}: {error}")
        if math.isnan(score) or not 0.0 <= score <= 1.0:
            return Verdict(None, name, error=f"{name} returned {score}, not a score in [0, 1]")
        return Verdict(score, name)


@dataclass(frozen=True, slots=True)
class Confidence:
    """The sample's mean top-1 probability as its score: free, and blind to being wrong with confidence."""

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"confidence"})

    async def score(self, batch: Sequence[Candidate]) -> list[Verdict]:
        return [
            Verdict(c.confidence, "confidence", error=None if c.confidence is not None else "no confidence")
            for c in batch
        ]
