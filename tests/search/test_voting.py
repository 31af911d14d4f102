"""Votes: grouping, order, and the certainty of a lead."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.answers import extract
from search.voting import Group, Vote, beta_confidence, tally


def _votes(*answers: str | None) -> list[Vote]:
    return [Vote(answer, f"n{index}") for index, answer in enumerate(answers)]


def test_case_40_one_15_and_four_12_is_12() -> None:
    texts = ["Half of 24 is 12, and 3 more would be 15. The answer is 15."]
    texts += ["Half of 24 is 12, and 3 more would be 15. The answer is 12."] * 4
    groups = tally(_votes(*(extract(text) for text in texts)))
    assert [(group.answer, group.count) for group in groups] == [("12", 4), ("15", 1)]


def test_case_41_spellings_of_one_value_are_one_vote() -> None:
    groups = tally(_votes("$1,000", "1000", r"\boxed{1000}", "1{,}000", "1e3", "3/4", "0.75", r"\frac34"))
    assert [(group.answer, group.count) for group in groups] == [("$1,000", 5), ("3/4", 3)]


def test_case_42_replies_without_an_answer_do_not_vote() -> None:
    texts = ["I do not know.", "", "Let me think.", "7", "The answer is 7."]
    assert tally(_votes(*map(extract, texts))) == [Group("7", 2, 2.0, ("n3", "n4"))]
    assert tally(_votes(*map(extract, texts[:3]))) == []
    assert tally([]) == []


def test_case_42_ties_go_to_the_answer_given_first() -> None:
    assert [group.answer for group in tally(_votes("3", "1", "2", "1", "2", "3"))] == ["3", "1", "2"]


def test_order_is_weight_then_count_then_first_appearance() -> None:
    votes = [Vote("a1", "p", 1.0), Vote("b1", "q", 0.5), Vote("b1", "r", 0.5), Vote("c1", "s", 3.0)]
    assert [group.answer for group in tally(votes)] == ["c1", "b1", "a1"]


def test_weights_of_zero_leave_the_count_to_decide() -> None:
    votes = [Vote("1", "p", 0.0), Vote("2", "q", 0.0), Vote("2", "r", 0.0)]
    assert tally(votes) == [Group("2", 2, 0.0, ("q", "r")), Group("1", 1, 0.0, ("p",))]


@pytest.mark.parametrize("weight", [math.nan, math.inf, -math.inf])
def test_a_weight_that_is_not_finite_is_an_error(weight: float) -> None:
    with pytest.raises(ValueError, match=r"n9.*(nan|inf)"):
        tally([Vote("5", "n9", weight)])


def test_a_bare_number_does_not_join_two_units() -> None:
    groups = tally(_votes("5 km", "5 m", "5", "5 km"))
    assert [(group.answer, group.count) for group in groups] == [("5 km", 3), ("5 m", 1)]
    groups = tally(_votes("5", "5 km", "5 m"))
    assert [(group.answer, group.count) for group in groups] == [("5", 2), ("5 m", 1)]


def test_expressions_are_grouped_by_value() -> None:
    groups = tally(_votes("(x+1)^2", "x^2+2x+1", "x^2+1"))
    assert [(group.answer, group.count) for group in groups] == [("(x+1)^2", 2), ("x^2+1", 1)]


@pytest.mark.parametrize(("first", "second"), [("AB", "ab"), ("0.5", "1/2"), ("the cat", "cat")])
def test_exact_answers_are_one_vote_only_where_their_text_is_equal(first: str, second: str) -> None:
    groups = tally(_votes(first, second, f" {first}\n"), "exact")
    assert [(group.answer, group.count) for group in groups] == [(first, 2), (second, 1)]


@given(st.lists(st.sampled_from(["1", "1.0", "2", "x+1", "1+x", "5 km", None, " "]), max_size=12))
def test_every_answer_is_in_exactly_one_group(answers: list[str | None]) -> None:
    votes = _votes(*answers)
    members = [member for group in tally(votes) for member in group.members]
    assert sorted(members) == sorted(vote.node_id for vote in votes if vote.answer and vote.answer.strip())
    assert tally(votes) == tally(votes)


@pytest.mark.parametrize(
    ("first", "second", "value"),
    [(0, 0, 0.5), (1, 0, 0.75), (3, 0, 0.9375), (4, 0, 0.96875), (2, 2, 0.5), (0, 4, 1 / 32), (3, 1, 0.8125)],
)
def test_beta_confidence(first: int, second: int, value: float) -> None:
    assert beta_confidence(first, second) == value


@given(st.integers(0, 30), st.integers(0, 30))
def test_beta_confidence_is_the_integral_of_the_density(first: int, second: int) -> None:
    """Term by term integral of p^first (1-p)^second over (1/2, 1), divided by that over (0, 1)."""

    def primitive(p: Fraction) -> Fraction:
        terms = range(second + 1)
        return sum(
            (Fraction((-1) ** k * math.comb(second, k), first + k + 1) * p ** (first + k + 1) for k in terms),
            Fraction(0),
        )

    expected = (primitive(Fraction(1)) - primitive(Fraction(1, 2))) / primitive(Fraction(1))
    assert beta_confidence(first, second) == float(expected)


def test_beta_confidence_of_large_and_negative_counts() -> None:
    assert beta_confidence(5000, 5000) == 0.5
    assert beta_confidence(6000, 100) == 1.0
    with pytest.raises(ValueError, match="-1 and 2"):
        beta_confidence(-1, 2)
