"""Placement: hand-computed costs, and why the longest match alone is never enough."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.placement import Branch, Load, home, place
from actors.rates import EngineLoad
from search.types import Cost, Outcome, Sample

RATE = 100.0
STEP = 0.1


def load(prefill_tokens=0, rows=0, rate=RATE, step=STEP):
    return Load(prefill_tokens, rows, rate, step)


def branch(name="b", keys=("root", "leaf"), ends=(50, 90), rows=2, new_tokens=20):
    return Branch(name, tuple(key.encode() for key in keys), ends, rows, new_tokens)


def holds(**held):
    return lambda actor, _: held.get(actor, 0)


def put(branches, loads, held=None, homes=("a",), rows_per_engine=2, mu=12.0):
    return place(branches, loads, held or holds(), homes, rows_per_engine=rows_per_engine, mu=mu)


def test_every_term_of_the_cost():
    loads = {"a": load(prefill_tokens=30, rows=2), "b": load()}
    (placed,) = put([branch()], loads, holds(a=90), homes=("a",))
    assert placed.actor == "a" and placed.predicted_hit == 90
    assert placed.wait_s == pytest.approx(30 / 100)
    assert placed.recompute_s == 0
    assert placed.decode_s == pytest.approx(20 * 0.1 * (2 + 2) / 2)
    assert placed.away_s == 0
    assert placed.cost_s == pytest.approx(4.3)
    (placed,) = put([branch()], loads, homes=("b",))
    assert (placed.actor, placed.predicted_hit) == ("b", 0)
    assert placed.recompute_s == pytest.approx((90 - 50) / 100)
    assert placed.cost_s == pytest.approx(0.4 + 2.0)


def test_away_from_home_costs_mu_times_the_prefill():
    loads = {"a": load(rows=100), "b": load()}
    (placed,) = put([branch()], loads, holds(a=90), homes=("a",), mu=3.0)
    assert placed.actor == "b"
    assert placed.recompute_s == pytest.approx(90 / 100)
    assert placed.away_s == pytest.approx(3.0 * 90 / 100)


@pytest.mark.parametrize(("rows", "winner"), [(0, "a"), (2, "b")])
def test_an_overloaded_holder_loses(rows, winner):
    """a holds all 90 tokens, b none. a saves .4 s of prefill; two rows ahead of it there cost 2 s of decoding."""
    loads = {"a": load(rows=rows), "b": load()}
    (placed,) = put([branch()], loads, holds(a=90), homes=("a", "b"))
    assert placed.actor == winner


def test_a_holder_with_a_long_prefill_queue_loses():
    loads = {"a": load(prefill_tokens=1000), "b": load()}
    assert put([branch()], loads, holds(a=90), homes=("a", "b"))[0].actor == "b"


def test_a_slow_holder_loses():
    loads = {"a": load(step=1.0), "b": load()}
    assert put([branch()], loads, holds(a=90), homes=("a", "b"))[0].actor == "b"


def test_a_wave_of_siblings_spreads_over_the_home_and_shares_what_it_plans():
    siblings = [branch(f"b{i}", ("root", "parent"), (50, 90)) for i in range(4)]
    placed = put(siblings, {"a": load(), "b": load()}, homes=("a", "b"))
    assert [p.actor for p in placed] == ["a", "b", "a", "b"]
    assert [p.predicted_hit for p in placed] == [0, 0, 90, 90]
    assert placed[2].wait_s == pytest.approx(90 / 100)
    assert placed[2].decode_s == pytest.approx(20 * 0.1 * 4 / 2)


def test_siblings_that_fit_on_one_engine_stay_together():
    siblings = [branch(f"b{i}", ("root", "parent"), (50, 90), rows=1) for i in range(4)]
    placed = put(siblings, {"a": load(), "b": load()}, holds(a=90), homes=("a",), rows_per_engine=4)
    assert {p.actor for p in placed} == {"a"}
    assert {p.predicted_hit for p in placed} == {90}


def test_the_root_prefix_is_left_out_at_home_and_only_there():
    """Only the root is held on a: at home that is no advantage over b, which would get it anyway."""
    loads = {"a": load(rows=1), "b": load()}
    (placed,) = put([branch()], loads, holds(a=50), homes=("a", "b"))
    assert (placed.actor, placed.predicted_hit) == ("b", 0)
    assert placed.recompute_s == pytest.approx(0.4)
    (root,) = put([branch("r", ("root",), (50,))], loads, homes=("a", "b"))
    assert root.recompute_s == 0


def test_ties_go_to_the_home_named_first():
    loads = {name: load() for name in "abc"}
    assert put([branch()], loads, homes=("c", "a"))[0].actor == "c"
    assert put([branch()], loads, homes=("b", "a"))[0].actor == "b"
    assert put([branch()], loads, homes=())[0].actor == "a"


def test_home_is_as_large_as_the_ready_rows_need():
    loads = {"a": load(rows=3), "b": load(), "c": load(rows=1), "d": load(prefill_tokens=5)}
    assert home(1, loads, 2) == ("b",)
    assert home(4, loads, 2) == ("b", "d")
    assert home(5, loads, 2) == ("b", "d", "c")
    assert home(99, loads, 2) == ("b", "d", "c", "a")
    assert home(0, loads, 2) == ("b",)


def test_a_former_home_is_kept_while_it_is_up_and_needed():
    loads = {"a": load(rows=9), "b": load(), "c": load()}
    assert home(2, loads, 2, ("a",)) == ("a",)
    assert home(4, loads, 2, ("a",)) == ("a", "b")
    assert home(4, loads, 2, ("gone", "c")) == ("c", "b")
    assert home(2, loads, 2, ("a", "c")) == ("a",)


def test_trees_decide_between_equal_loads():
    loads = {"a": load(), "b": load(), "c": load(rows=1)}
    assert home(2, loads, 2, trees={"a": 2, "b": 1}) == ("b",)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 60)), min_size=1, max_size=20),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_every_branch_is_placed_once_in_order_on_an_engine_that_is_up(shape, engines, rows_per_engine):
    loads = {f"e{i}": load() for i in range(engines)}
    branches = [branch(f"b{i}", (f"k{i}",), (length,), rows) for i, (rows, length) in enumerate(shape)]
    homes = home(sum(rows for rows, _ in shape), loads, rows_per_engine)
    placed = put(branches, loads, homes=homes, rows_per_engine=rows_per_engine)
    assert [p.id for p in placed] == [b.id for b in branches]
    assert {p.actor for p in placed} <= set(loads)
    assert all(p.away_s > 0 for p in placed if p.actor not in homes)
    assert put(branches, loads, homes=homes, rows_per_engine=rows_per_engine) == placed
    rows = {name: sum(b.rows for b, p in zip(branches, placed, strict=True) if p.actor == name) for name in homes}
    if len(homes) > 1 and len({length for _, length in shape}) == 1:
        assert max(rows.values()) - min(rows.values()) <= 2 * max(n for n, _ in shape) + rows_per_engine


# -- measured rates ------------------------------------------------------------------------------------------------
def outcome(prefilled, prefill_s, tokens, decode_s):
    sample = Sample("x", tuple(range(tokens)), "step")
    return Outcome(
        "o", "p", "r", (sample,), "a", Cost(prefilled=prefilled, seconds={"prefill": prefill_s, "decode": decode_s})
    )


def test_rates_follow_what_was_measured():
    engine = EngineLoad(prefill_rate=100.0, step_s=0.1)
    engine.learn([outcome(200, 0.5, 10, 0.5), outcome(200, 0.5, 20, 0.5)])
    assert engine.prefill_rate == pytest.approx(100 + 0.3 * (400 - 100))
    assert engine.step_s == pytest.approx(0.1 + 0.3 * (0.05 - 0.1))


@pytest.mark.parametrize(
    "found", [[], [outcome(0, 0.0, 0, 0.0)], [outcome(15, 1.0, 3, 1.0)], [outcome(999, 0.0, 99, 0.0)]]
)
def test_what_took_no_measurable_time_teaches_nothing(found):
    engine = EngineLoad(prefill_rate=100.0, step_s=0.1)
    engine.learn(found)
    assert (engine.prefill_rate, engine.step_s) == (100.0, 0.1)
