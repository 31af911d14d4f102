"""Intervals of proportions and of statistics over independent units, and the area under a ROC curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, fsum, lgamma, log, log1p
from random import Random

_BISECTIONS = 60
_RESAMPLES = 1000


def clopper_pearson(k: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact two-sided interval of a proportion with k of n (Clopper and Pearson 1934); (0, 1) for n = 0."""
    if not 0 <= k <= n:
        raise ValueError(f"k must lie in 0..n; got k = {k}, n = {n}")
    tail = (1 - confidence) / 2
    low = 0.0 if k == 0 else _root(lambda p: 1 - binomial_cdf(k - 1, n, p) >= tail)
    high = 1.0 if k == n else _root(lambda p: binomial_cdf(k, n, p) <= tail)
    return low, high


def binomial_cdf(k: int, n: int, p: float) -> float:
    """P(Bin(n, p) <= k)"""
    if p <= 0 or k >= n:
        return 1.0
    if p >= 1:
        return 0.0
    ways = (lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1) for i in range(k + 1))
    return fsum(exp(way + i * log(p) + (n - i) * log1p(-p)) for i, way in enumerate(ways))


def auc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """P(a positive scores higher than a negative), ties count half: the area under the ROC curve."""
    if not positive or not negative:
        raise ValueError("an area under the ROC curve needs scores of both classes")
    return fsum((p > n) + (p == n) / 2 for p in positive for n in negative) / (len(positive) * len(negative))


def bootstrap(size: int, statistic: Callable[[Sequence[int]], float], seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of a statistic of unit numbers 0 .. size - 1 drawn with replacement."""
    random = Random(seed)
    found = sorted(statistic(random.choices(range(size), k=size)) for _ in range(_RESAMPLES))
    return found[int(0.025 * _RESAMPLES)], found[int(0.975 * _RESAMPLES)]


def _root(reached: Callable[[float], bool]) -> float:
    """The smallest p in [0, 1] at which a condition, false below it and true above, holds."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return (low + high) / 2
