"""How the scores of a path's steps become one score of the path.

`aggregate` gives the textbook value. `path_score` gives what paths of different lengths are compared by: products and
sums of logarithms shrink with every step, so these two are taken per step (the geometric mean).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Literal, get_args

Rule = Literal["last", "min", "prod", "mean", "sum_logprob"]
RULES: tuple[str, ...] = get_args(Rule)


def aggregate(scores: Sequence[float], rule: str) -> float:
    """One value from step scores in [0, 1] (Lightman et al. 2023 prod and min; Snell et al. 2024 last).

    sum_logprob: sum of ln(score), in (-inf, 0]; the others are in [0, 1]. ValueError for no scores, a score that is
    not in [0, 1], or an unknown rule.
    """
    if not scores:
        raise ValueError("no step scores to aggregate; a path needs at least 1")
    for score in scores:
        if not 0.0 <= score <= 1.0:
            raise ValueError(f"step score must be in [0, 1], got {score!r}")
    if rule == "last":
        return scores[-1]
    if rule == "min":
        return min(scores)
    if rule == "prod":
        return math.prod(scores)
    if rule == "mean":
        return fmean(scores)
    if rule == "sum_logprob":
        return math.fsum(map(math.log, scores)) if min(scores) > 0 else -math.inf
    raise ValueError(f"unknown aggregation {rule!r}; choices: {', '.join(RULES)}")


def path_score(scores: Sequence[float], rule: str) -> float:
    """The aggregate in [0, 1], comparable between paths of any length; errors as in `aggregate`.

    Among paths of equal length the order is that of `aggregate`.
    """
    value = aggregate(scores, rule)
    if rule == "prod":
        return math.exp(aggregate(scores, "sum_logprob") / len(scores))
    if rule == "sum_logprob":
        return math.exp(value / len(scores))
    return value
