"""The exact paired test against its definition."""

import math

import pytest

from search.paired import by_luck, mcnemar


@pytest.mark.parametrize(
    ("better", "worse", "p"), [(0, 0, 1.0), (5, 0, 0.0625), (0, 6, 0.03125), (3, 3, 1.0), (10, 2, 0.03857421875)]
)
def test_mcnemar(better, worse, p):
    assert mcnemar(better, worse) == pytest.approx(p)
    assert mcnemar(worse, better) == mcnemar(better, worse)


def test_by_luck_is_the_upper_tail_of_a_fair_coin():
    for n in range(12):
        for better in range(n + 1):
            exact = sum(math.comb(n, i) for i in range(better, n + 1)) / 2**n
            assert by_luck(better, n - better) == pytest.approx(exact)


def test_a_certain_win_of_many_has_no_rounding():
    assert by_luck(900, 0) == pytest.approx(0.5**900, rel=1e-9)


@pytest.mark.parametrize("counts", [(-1, 2), (2, -1)])
def test_negative_counts_are_refused(counts):
    for test in (by_luck, mcnemar):
        with pytest.raises(ValueError, match="must not be negative, got -1"):
            test(*counts)
