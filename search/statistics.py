"""Intervals, paired tests and AUC for comparing searches; exact where that is possible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist


def wilson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Interval of a share (Wilson 1927); (0, 1) without trials. ValueError unless 0 <= successes <= trials."""
    if not 0 <= successes <= trials:
        raise ValueError(f"successes must be between 0 and trials, got {successes} of {trials}")
    if not trials:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, spread = successes / trials, z * z / trials
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / trials + spread / (4 * trials))
    return max(centre - half, 0.0), min(centre + half, 1.0)


def binomial_tail(successes: int, trials: int, chance: float = 0.5) -> float:
    """P(X >= successes) for X ~ Bin(trials, chance), summed exactly enough for any p-value."""
    if not 0 < chance < 1:
        raise ValueError(f"chance must be in (0, 1), got {chance!r}")
    if successes <= 0:
        return 1.0
    logs = [
        math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        + k * math.log(chance) + (trials - k) * math.log1p(-chance)
        for k in range(successes, trials + 1)
    ]  # fmt: skip
    return min(math.fsum(map(math.exp, logs)), 1.0)


def mcnemar(better: int, worse: int) -> float:
    """Two-sided p-value of the exact McNemar test (McNemar 1947): problems only one of two searches got right.

    Under "no difference" each of them is a fair coin; problems that both or neither got right say nothing.
    """
    return min(2 * binomial_tail(max(better, worse), better + worse), 1.0)


def auc(scores: Sequence[float], right: Sequence[bool]) -> float | None:
    """P(score of a right one > score of a wrong one), ties count half; None without both kinds."""
    if len(scores) != len(right):
        raise ValueError(f"each score needs a label, got {len(scores)} scores and {len(right)} labels")
    ordered = sorted(zip(scores, right, strict=True))
    num_right = sum(right)
    num_wrong = len(right) - num_right
    if not num_right or not num_wrong:
        return None
    wins, wrong_below, i = 0.0, 0, 0
    while i < len(ordered):
        j = i
        while j < len(ordered) and ordered[j][0] == ordered[i][0]:
            j += 1
        tied = sum(label for _, label in ordered[i:j])
        wins += tied * (wrong_below + (j - i - tied) / 2)
        wrong_below += j - i - tied
        i = j
    return wins / (num_right * num_wrong)
