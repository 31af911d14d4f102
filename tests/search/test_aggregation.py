"""Step scores to path scores: textbook values, equal footing for paths of any length, and refusals."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.aggregation import RULES, aggregate, path_score
from search.strategies import registry

SCORES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("rule", "value", "comparable"),
    [
        ("last", 0.5, 0.5),
        ("min", 0.2, 0.2),
        ("prod", 0.04, 0.04 ** (1 / 3)),
        ("mean", 1.1 / 3, 1.1 / 3),
        ("sum_logprob", math.log(0.04), 0.04 ** (1 / 3)),
    ],
)
def test_values(rule, value, comparable):
    assert aggregate([0.4, 0.2, 0.5], rule) == pytest.approx(value)
    assert path_score([0.4, 0.2, 0.5], rule) == pytest.approx(comparable)


@given(SCORES, st.sampled_from(RULES))
def test_a_path_score_is_in_the_range_of_its_steps(scores, rule):
    assert min(scores) - 1e-9 <= path_score(scores, rule) <= max(scores) + 1e-9


@given(st.floats(0.001, 1), st.integers(1, 40), st.sampled_from(RULES))
def test_the_length_of_an_even_path_does_not_count(score, length, rule):
    assert path_score([score] * length, rule) == pytest.approx(score)


@given(st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)), min_size=1, max_size=8), st.sampled_from(RULES))
def test_between_paths_of_equal_length_the_order_is_the_textbook_order(pairs, rule):
    left, right = ([pair[i] for pair in pairs] for i in (0, 1))
    difference = aggregate(left, rule) - aggregate(right, rule)
    if abs(difference) > 1e-9:
        assert (path_score(left, rule) > path_score(right, rule)) == (difference > 0)


def test_a_zero_is_a_zero_and_not_an_error():
    assert aggregate([0.0, 0.5], "sum_logprob") == -math.inf
    assert path_score([0.0, 0.5], "sum_logprob") == path_score([0.0, 0.5], "prod") == 0.0


def test_a_product_of_many_steps_does_not_vanish():
    assert path_score([0.01] * 400, "prod") == pytest.approx(0.01)


def test_refusals_name_the_rule_the_value_and_the_choices():
    with pytest.raises(ValueError, match=r"unknown aggregation 'max'; choices: last, min, prod, mean, sum_logprob"):
        aggregate([0.5], "max")
    with pytest.raises(ValueError, match=r"in \[0, 1\], got 1.5"):
        aggregate([1.5], "mean")
    with pytest.raises(ValueError, match="at least 1"):
        path_score([], "mean")
    with pytest.raises(ValueError, match=r"option aggregate must be 'last', 'min', .* or 'sum_logprob', got 'max'"):
        registry.create("beam", aggregate="max")


@pytest.mark.parametrize(("rule", "kept"), [("last", "r.1.0"), ("min", "r.0.0"), ("prod", "r.0.0"), ("mean", "r.0.0")])
def test_a_beam_keeps_the_best_path_not_only_the_best_step(bench, rule, kept):
    """0.6 then 0.6, or 0.1 then 0.7."""
    b = bench("beam", n=4, m=2, aggregate=rule, max_depth=3)
    b.tell(b.ask()[0], ("a ", 0.6), ("b ", 0.1))
    for order, texts in zip(b.ask(), ([("c ", 0.6)], [("d ", 0.7)]), strict=True):
        b.tell(order, *texts)
    assert b.strategy.rank(b.tree, b.tree.node(kept)) == max(b.strategy.rank(b.tree, n) for n in b.tree.level(2))


def test_steps_without_a_score_are_left_out(bench):
    b = bench("beam", n=2, m=1, aggregate="mean")
    b.tell(b.ask()[0], ("a ", 0.4), ("b ", None))
    first, second = b.tree.level(1)
    assert b.strategy.path_score(b.tree, first) == 0.4
    assert b.strategy.path_score(b.tree, second) is None
    assert b.strategy.rank(b.tree, second) < b.strategy.rank(b.tree, first)


def test_case_12_by_every_rule_the_long_good_path_beats_the_short_poor_one(bench):
    for rule in RULES:
        b = bench("beam", n=4, m=2, max_depth=8, aggregate=rule)
        b.tell(b.ask()[0], ("Answer: 1", 0.1), ("on ", 0.9))
        for step in range(6):
            (order,) = b.ask()
            b.tell(order, ("Answer: 2" if step == 5 else "on ", 0.9))
        chosen = b.strategy.answer(b.tree)
        assert (chosen.answer, chosen.complete) == ("2", True), rule
