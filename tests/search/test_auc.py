"""AUC of a verifier: rank-based, ties half, none without both kinds."""

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.verifiers.auc import auc, auc_within

PAIRS = st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.booleans()), max_size=30)


def by_hand(pairs) -> float | None:
    right = [score for score, correct in pairs if correct]
    wrong = [score for score, correct in pairs if not correct]
    if not right or not wrong:
        return None
    return sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in product(right, wrong)) / (len(right) * len(wrong))


@given(PAIRS)
def test_auc_is_the_share_of_pairs_in_order(pairs) -> None:
    expected = by_hand(pairs)
    assert auc(pairs) == (None if expected is None else pytest.approx(expected))


@given(st.lists(PAIRS, max_size=6))
def test_auc_within_weighs_every_pair_of_one_problem_alike(problems) -> None:
    wins = pairings = 0.0
    for pairs in problems:
        right = sum(correct for _, correct in pairs)
        count = right * (len(pairs) - right)
        wins += (by_hand(pairs) or 0.0) * count
        pairings += count
    assert auc_within(problems) == (pytest.approx(wins / pairings) if pairings else None)


def test_the_two_differ_where_problems_differ_in_level() -> None:
    """Scores say which problem is easy, and nothing within a problem."""
    problems = [[(0.9, True), (0.9, True), (0.9, False)], [(0.1, True), (0.1, False), (0.1, False)]]
    assert auc_within(problems) == 0.5
    assert auc([pair for pairs in problems for pair in pairs]) == pytest.approx(6 / 9)


@pytest.mark.parametrize(
    ("pairs", "value"),
    [
        ([], None),
        ([(0.4, True)], None),
        ([(0.4, False), (0.9, False)], None),
        ([(0.4, False), (0.9, True)], 1.0),
        ([(0.4, True), (0.9, False)], 0.0),
        ([(0.4, True), (0.4, False)], 0.5),
    ],
)
def test_small_cases(pairs, value: float | None) -> None:
    assert auc(pairs) == value


def test_a_score_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="not a number"):
        auc([(math.nan, True), (0.5, False)])
