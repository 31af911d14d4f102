"""How well a verifier's scores tell right from wrong: the area under the ROC curve, from ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

Scored = Sequence[tuple[float, bool]]
"""Pairs (score, whether the branch is right)."""


def auc(pairs: Scored) -> float | None:
    """P(a right branch scores above a wrong one), ties counting half (Mann-Whitney U); None without both kinds.

    ValueError for a score that is not a number.
    """
    wins, pairings = _wins(pairs)
    return wins / pairings if pairings else None


def auc_within(problems: Iterable[Scored]) -> float | None:
    """As `auc`, but only branches of one problem are compared: what selecting among them depends on.

    Every pair of a right and a wrong branch of one problem counts alike; None if no problem has both.
    """
    totals = [_wins(pairs) for pairs in problems]
    pairings = sum(count for _, count in totals)
    return sum(wins for wins, _ in totals) / pairings if pairings else None


def _wins(pairs: Scored) -> tuple[float, int]:
    """(pairs won by the right branch, ties half; number of right-wrong pairs)"""
    if any(math.isnan(score) for score, _ in pairs):
        raise ValueError("a score is not a number, so that branches have no order")
    wins, wrong_below, right_total = 0.0, 0, 0
    for _, tied in groupby(sorted(pairs, key=lambda pair: pair[0]), key=lambda pair: pair[0]):
        rights = [right for _, right in tied]
        right = sum(rights)
        wrong = len(rights) - right
        wins += right * (wrong_below + wrong / 2)
        wrong_below += wrong
        right_total += right
    return wins, right_total * wrong_below
