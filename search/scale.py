"""A problem's scores on one scale, so that omega compares branches of different problems fairly."""

from __future__ import annotations

from collections.abc import Iterable


class Scale:
    """Maps the scores a problem has seen to [0, 1], its worst to 0 and its best to 1 (RKSC: omega per problem)."""

    def __init__(self) -> None:
        self.low = float("inf")
        self.high = float("-inf")

    def widen(self, scores: Iterable[float]) -> bool:
        """Take in new scores; True if that changed what `of` gives for the earlier ones."""
        before = self.low, self.high
        for score in scores:
            self.low, self.high = min(self.low, score), max(self.high, score)
        return before != (self.low, self.high)

    def of(self, score: float) -> float:
        """0.5 while all scores are equal."""
        width = self.high - self.low
        return (score - self.low) / width if width > 0 else 0.5
