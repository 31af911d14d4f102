"""From a score for each step to a verdict: right count, sound values, one rule."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import cast

from search.aggregation import path_score
from search.types import Cost, Verdict


def unit(score: object) -> float | None:
    """The score as a float; None for what is no number in [0, 1]."""
    if isinstance(score, bool) or not isinstance(score, Real):
        return None
    number = cast(float, score)
    return float(number) if 0.0 <= number <= 1.0 else None


def verdict_of(scores: object, steps: int, by: str, rule: str = "last", cost: Cost | None = None) -> Verdict:
    """The verdict from one score per step, put together by `search.aggregation`.

    Another number of scores than steps, or a score that is no number in [0, 1], is an error of the verifier's and never
    a score.
    """
    cost = cost or Cost()
    if not isinstance(scores, Sequence) or isinstance(scores, str | bytes):
        return Verdict(None, by, cost, f"{by} gave {type(scores).__name__}, not a list of step scores")
    if len(scores) != steps:
        return Verdict(None, by, cost, f"{by} gave {len(scores)} scores for {steps} steps")
    for i, score in enumerate(scores, 1):
        if unit(score) is None:
            return Verdict(None, by, cost, f"{by} gave step {i} the score {score!r}, not a number in [0, 1]")
    return Verdict(path_score([float(score) for score in scores], rule), by, cost)
