"""Several verifiers as one: those that fail are left out, and the verdict says so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import Literal, get_args

from search.ports import Candidate, Context, KeepVerdict, Verifier
from search.types import Cost, Problem, Verdict
from search.verifiers.sound import kept, piecewise, sound_verdicts, tokens_to_score

Combine = Literal["mean", "min", "max", "median"]


@dataclass(frozen=True)
class Ensemble:
    """combine: how the members' scores of one path become one. weights: of the members, for the mean.

    timeout_s: a member that takes longer for a batch is left out of it. A path that no member could judge has a verdict
    with all their errors; one that only some could judge has the score of those, and the errors of the others beside.
    """

    members: tuple[Verifier, ...]
    combine: Combine = "mean"
    weights: tuple[float, ...] = ()
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if not self.members:
            raise ValueError("an ensemble needs at least 1 verifier")
        if self.combine not in get_args(Combine):
            raise ValueError(f"ensemble combine must be one of {', '.join(get_args(Combine))}, got {self.combine!r}")
        if self.weights and (len(self.weights) != len(self.members) or min(self.weights) <= 0):
            raise ValueError(
                f"ensemble weights must be {len(self.members)} positive numbers, one a verifier, got {self.weights!r}"
            )
        if self.weights and self.combine != "mean":
            raise ValueError(f"ensemble weights go with combine 'mean', got {self.combine!r}")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset().union(*(member.needs for member in self.members))

    def tokens_to_score(self, batch: Sequence[Candidate]) -> int:
        return sum(tokens_to_score(member, batch) for member in self.members)

    def kept(self, problem: Problem) -> Sequence[Context]:
        return list(dict.fromkeys(path for member in self.members for path in kept(member, problem)))

    async def score(self, batch: Sequence[Candidate]) -> list[Verdict]:
        return await piecewise(self, batch)

    async def score_each(self, batch: Sequence[Candidate], keep: KeepVerdict) -> None:
        rows: list[dict[int, Verdict]] = [{} for _ in batch]

        def came(member: int, i: int, verdict: Verdict) -> None:
            rows[i][member] = verdict
            if len(rows[i]) == len(self.members):
                keep(i, self._one([rows[i][n] for n in range(len(self.members))]))

        asked = enumerate(self.members)
        await asyncio.gather(*(sound_verdicts(m, batch, self.timeout_s, partial(came, n)) for n, m in asked))

    def _one(self, verdicts: list[Verdict]) -> Verdict:
        weights = self.weights or (1.0,) * len(verdicts)
        known = [(v.score, w) for v, w in zip(verdicts, weights, strict=True) if v.score is not None]
        cost = sum((verdict.cost for verdict in verdicts), Cost())
        errors = "; ".join(dict.fromkeys(verdict.error for verdict in verdicts if verdict.error))
        score = self._combined(known) if known else None
        return Verdict(score, "ensemble", cost, errors or (None if known else "no verifier gave a score"))

    def _combined(self, known: list[tuple[float, float]]) -> float:
        scores = [score for score, _ in known]
        if self.combine == "min":
            return min(scores)
        if self.combine == "max":
            return max(scores)
        return median(scores) if self.combine == "median" else fmean(scores, [weight for _, weight in known])
