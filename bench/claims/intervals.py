"""Intervals of statistics over independent units, and the area under a ROC curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from search.verifiers.auc import auc as pairs_auc

_RESAMPLES = 1000


def auc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """P(a positive scores higher than a negative), ties count half: the area under the ROC curve."""
    found = pairs_auc([*((score, True) for score in positive), *((score, False) for score in negative)])
    if found is None:
        raise ValueError("an area under the ROC curve needs scores of both classes")
    return found


def bootstrap(size: int, statistic: Callable[[Sequence[int]], float], seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of a statistic of unit numbers 0 .. size - 1 drawn with replacement."""
    random = Random(seed)
    found = sorted(statistic(random.choices(range(size), k=size)) for _ in range(_RESAMPLES))
    return found[int(0.025 * _RESAMPLES)], found[int(0.975 * _RESAMPLES)]
