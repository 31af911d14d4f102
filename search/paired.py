"""Two searches on the same problems: is one better, or was it luck? Exact tests on the problems they disagree on."""

from __future__ import annotations

from search.calibration.binomial import at_most


def by_luck(better: int, worse: int) -> float:
    """One-sided p-value: P(as many or more disagreements in favour of one), were each a fair coin."""
    _require_counts(better, worse)
    return at_most(worse, better + worse, 0.5)


def mcnemar(better: int, worse: int) -> float:
    """Two-sided p-value of the exact McNemar test (McNemar 1947).

    better, worse: problems that only the one, and only the other, got right; those that both or neither got right say
    nothing. Under "no difference" each is a fair coin.
    """
    _require_counts(better, worse)
    return min(2 * by_luck(max(better, worse), min(better, worse)), 1.0)


def _require_counts(*counts: int) -> None:
    for count in counts:
        if count < 0:
            raise ValueError(f"counts of problems must not be negative, got {count}")
