"""Confidence of tokens and of groups of them, by which rows end early (DeepConf, Fu et al. 2025, arXiv 2508.15260)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.base import PruneRule

TOP = 20
"""Likeliest tokens in a place that its confidence averages over, as in the paper's experiments."""
_LEAST = -100.0
"""Smallest log-probability that counts: a token that cannot come is not infinitely certain not to."""


def token_confidence(logprobs: Iterable[float]) -> float:
    """Minus the mean log-probability of the likeliest tokens in one place: large where few of them share all."""
    values = [max(value, _LEAST) for value in logprobs]
    return -sum(values) / len(values)


@dataclass(slots=True)
class Groups:
    """The groups of one row: mean confidences of every `window` tokens in a row, as the tokens come."""

    rule: PruneRule
    _recent: deque[float] = field(default_factory=deque)
    _total: float = 0.0
    _lowest: float | None = None

    @classmethod
    def of(cls, rule: PruneRule | None) -> Groups | None:
        return None if rule is None else cls(rule)

    def add(self, confidence: float) -> bool:
        """Whether the group that this token completes is below the floor."""
        self._recent.append(confidence)
        self._total += confidence
        if len(self._recent) > self.rule.window:
            self._total -= self._recent.popleft()
        if len(self._recent) < self.rule.window:
            return False
        mean = self._total / self.rule.window
        self._lowest = mean if self._lowest is None else min(self._lowest, mean)
        return self.rule.floor is not None and mean < self.rule.floor

    @property
    def lowest(self) -> float | None:
        """The lowest group so far; of fewer tokens than a group, their mean; None of none."""
        if self._lowest is None and self._recent:
            return self._total / len(self._recent)
        return self._lowest
