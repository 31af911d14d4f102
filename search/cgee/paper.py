"""The paper's verify-skip rule: confidence p(b) = mean top-1 probability, two clauses on the two highest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from search.cgee.base import Rule, Skip, Wave
from search.strategies.options import require_number

_RELAXED = 0.9
"""The second clause asks for this share of tau_conf only."""
_STRICT = (0.98, 0.30, 0.40)
_PAPER = (0.70, 0.06, 0.08)
_LOOSE = (0.50, 0.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Paper(Rule):
    """Skip if top >= tau_conf and top - second >= gap, or top >= 0.9 tau_conf and (top - second) / top >= rel.

    Source: RKSC (Sekar 2026), CGEE level 1, with its defaults. A wave with fewer than two branches, or with one whose
    confidence is unknown, is verified. Standing: the confidence.
    """

    name: ClassVar[str] = "paper"
    tau_conf: float = 0.70
    gap: float = 0.06
    rel: float = 0.08

    def __post_init__(self) -> None:
        require_number(self, 0.0, 1.0, "tau_conf", "gap", "rel")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"confidence"})

    def decide(self, wave: Wave) -> Skip | None:
        confidences = [c.confidence for c in wave.contenders if c.confidence is not None]
        if len(confidences) < max(len(wave.contenders), 2):
            return None
        top, second = sorted(confidences, reverse=True)[:2]
        decisive = top >= self.tau_conf and top - second >= self.gap
        dominant = top >= _RELAXED * self.tau_conf and top > 0 and (top - second) / top >= self.rel
        if not decisive and not dominant:
            return None
        return Skip(self.name, f"top confidence {top:.3f}, second {second:.3f}", tuple(confidences))

    @classmethod
    def grid(cls) -> list[Mapping[str, float]]:
        """Candidate thresholds, strict to loose, in even steps through the paper's own."""
        strict = [_between(_STRICT, _PAPER, i / 8) for i in range(8)]
        return [*strict, *(_between(_PAPER, _LOOSE, i / 4) for i in range(5))]


def _between(start: tuple[float, ...], end: tuple[float, ...], share: float) -> Mapping[str, float]:
    values = (round(a + (b - a) * share, 4) for a, b in zip(start, end, strict=True))
    return dict(zip(("tau_conf", "gap", "rel"), values, strict=True))
