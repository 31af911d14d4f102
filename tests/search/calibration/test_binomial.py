"""Binomial tails against exact fractions, and the bounds built on them."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.calibration.binomial import at_most, clopper_pearson, needed_n, upper_bound


def exact(k: int, n: int, p: Fraction) -> Fraction:
    return sum((math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1)), Fraction(0))


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 99))
def test_tails_are_the_exact_sums(k: int, n: int, percent: int) -> None:
    k = min(k, n)
    expected = exact(k, n, Fraction(percent, 100))
    assert at_most(k, n, percent / 100) == pytest.approx(float(expected), rel=1e-11)


@pytest.mark.parametrize(
    ("k", "n", "p"), [(0, 299, "1/100"), (6, 1616, "1/100"), (3, 5000, "1/200"), (40, 900, "1/20")]
)
def test_tails_of_real_calibrations(k: int, n: int, p: str) -> None:
    assert at_most(k, n, float(Fraction(p))) == pytest.approx(float(exact(k, n, Fraction(p))), rel=1e-10)


def test_a_tail_that_no_float_could_hold_term_by_term() -> None:
    assert 0.0 < at_most(10, 30_000, 0.02) < 1e-200
    assert at_most(29_999, 30_000, 0.02) == 1.0


@pytest.mark.parametrize(
    ("k", "n", "p", "value"), [(-1, 5, 0.3, 0.0), (5, 5, 0.3, 1.0), (0, 5, 0.0, 1.0), (4, 5, 1.0, 0.0)]
)
def test_edges(k: int, n: int, p: float, value: float) -> None:
    assert at_most(k, n, p) == value


@pytest.mark.parametrize(("alpha", "n"), [(0.05, 59), (0.02, 149), (0.01, 299), (0.005, 598)])
def test_decisions_needed_without_a_loss(alpha: float, n: int) -> None:
    assert needed_n(alpha, 0.05) == n


@given(st.floats(0.003, 0.5), st.floats(0.01, 0.5), st.integers(0, 4))
def test_needed_n_is_the_least_that_suffices(alpha: float, delta: float, losses: int) -> None:
    n = needed_n(alpha, delta, losses)
    assert at_most(losses, n, alpha) <= delta
    assert n == losses + 1 or at_most(losses, n - 1, alpha) > delta


@given(st.integers(1, 400), st.integers(0, 400), st.sampled_from([0.8, 0.95, 0.99]))
def test_clopper_pearson_bounds_leave_their_share_in_each_tail(n: int, k: int, confidence: float) -> None:
    k, error = min(k, n), (1 - confidence) / 2
    low, high = clopper_pearson(k, n, confidence)
    assert 0.0 <= low <= k / n <= high <= 1.0
    if k < n:
        assert at_most(k, n, high) == pytest.approx(error, rel=1e-9)
    if k > 0:
        assert 1 - at_most(k - 1, n, low) == pytest.approx(error, rel=1e-6)
    mirrored = clopper_pearson(n - k, n, confidence)
    assert (1 - high, 1 - low) == pytest.approx(mirrored, abs=1e-9)


def test_bounds_in_closed_form() -> None:
    assert upper_bound(0, 299, 0.05) == pytest.approx(1 - 0.05 ** (1 / 299))
    assert clopper_pearson(0, 0) == (0.0, 1.0)
    assert clopper_pearson(10, 10)[1] == 1.0
    low, high = clopper_pearson(6, 1616)
    assert low < 6 / 1616 < high < 0.01


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: at_most(0, -1, 0.5), "n >= 0"),
        (lambda: at_most(0, 5, 1.5), "p must be in"),
        (lambda: needed_n(0.0, 0.05), "alpha must be between 0 and 1"),
        (lambda: needed_n(0.01, 1.0), "delta must be between 0 and 1"),
        (lambda: needed_n(0.01, 0.05, -1), "losses must not be negative"),
        (lambda: clopper_pearson(3, 2), "3 of 2"),
        (lambda: clopper_pearson(1, 2, 1.0), "confidence must be"),
        (lambda: upper_bound(-1, 2, 0.05), "-1 of 2"),
    ],
)
def test_nonsense_is_refused_by_name(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
