"""Intervals, exact tests and AUC against values from tables and from their definitions."""

import itertools
import math
import random

import pytest

from search.statistics import auc, binomial_tail, mcnemar, wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662)],
)
def test_wilson(successes, trials, low, high):
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)


def test_wilson_without_trials_knows_nothing_and_refuses_nonsense():
    assert wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="got 3 of 2"):
        wilson(3, 2)


def test_wilson_covers_as_often_as_it_says():
    """Exact coverage at p = 0.3, n = 50, summed over all outcomes."""
    covered = 0.0
    for k in range(51):
        low, high = wilson(k, 50)
        if low <= 0.3 <= high:
            covered += math.comb(50, k) * 0.3**k * 0.7 ** (50 - k)
    assert 0.93 < covered < 0.97


@pytest.mark.parametrize("chance", [0.5, 0.1])
def test_binomial_tail_is_the_sum_of_its_terms(chance):
    for n in (0, 1, 7, 30):
        for k in range(n + 2):
            exact = sum(math.comb(n, i) * chance**i * (1 - chance) ** (n - i) for i in range(k, n + 1))
            assert binomial_tail(k, n, chance) == pytest.approx(exact, abs=1e-12)
    with pytest.raises(ValueError, match="chance"):
        binomial_tail(1, 2, 1.0)


@pytest.mark.parametrize(
    ("better", "worse", "p"), [(0, 0, 1.0), (5, 0, 0.0625), (0, 6, 0.03125), (3, 3, 1.0), (10, 2, 0.03857421875)]
)
def test_mcnemar(better, worse, p):
    assert mcnemar(better, worse) == pytest.approx(p)
    assert mcnemar(worse, better) == mcnemar(better, worse)


def test_auc_is_the_share_of_pairs_in_order():
    rng = random.Random(1)
    for _ in range(50):
        labels = [rng.random() < 0.4 for _ in range(12)]
        scores = [rng.randrange(4) / 4 for _ in range(12)]
        rights = [s for s, label in zip(scores, labels, strict=True) if label]
        wrongs = [s for s, label in zip(scores, labels, strict=True) if not label]
        pairs = list(itertools.product(rights, wrongs))
        if pairs:
            wins = sum((a > b) + (a == b) / 2 for a, b in pairs)
            assert auc(scores, labels) == pytest.approx(wins / len(pairs))


def test_auc_needs_both_kinds_and_a_label_each():
    assert auc([0.1, 0.2], [True, True]) is None
    assert auc([], []) is None
    with pytest.raises(ValueError, match="2 scores and 1 labels"):
        auc([0.1, 0.2], [True])
