"""Placement: hand-computed costs, candidates, homes, and why the longest match alone is never enough."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.homes import by_usefulness, home, home_size
from actors.link import Link
from actors.placement import (
    MAX_HOLDERS,
    Branch,
    Load,
    Wave,
    candidates,
    place,
)
from actors.rates import EngineLoad
from search.types import Cost, Outcome, Sample, Score

RATE = 100.0
STEP = 0.1


def load(prefill_tokens=0, rows=0, rate=RATE, step=STEP, demand=0.0):
    return Load(prefill_tokens, rows, rate, step, demand=demand)


def branch(name="b", keys=("root", "leaf"), ends=(50, 90), rows=2, new_tokens=20, avoid=()):
    return Branch(name, tuple(key.encode() for key in keys), ends, rows, new_tokens, avoid)


def holds(**held):
    """Engines by the key they hold: `leaf="ab"`."""
    return lambda key: frozenset(held.get(key.decode(), ""))


def wave(loads, held=None, homes=("a",), rows_per_engine=2, **more):
    return Wave(sorted(loads), loads, held or holds(), homes, rows_per_engine=rows_per_engine, **more)


def put(branches, loads, held=None, homes=("a",), **more):
    return place(wave(loads, held, homes, **more), branches)


def test_every_term_of_the_cost():
    loads = {"a": load(prefill_tokens=30, rows=2), "b": load()}
    (placed,) = put([branch()], loads, holds(leaf="a"), homes=("a",))
    assert placed.actor == "a" and placed.predicted_hit == placed.available == 90
    assert placed.wait_s == pytest.approx(30 / 100 + 2 / 2 * 20 * 0.1)
    assert placed.recompute_s == 0
    assert placed.decode_s == pytest.approx(20 * 0.1)
    assert placed.away_s == 0
    assert placed.cost_s == pytest.approx(4.3)
    assert (placed.runner_up, placed.runner_up_s) == ("b", pytest.approx(0.9 + 2.0 + 12 * 0.9))
    assert placed.candidates == 2 and placed.policy == "rsbcm"
    (placed,) = put([branch()], loads, homes=("b",))
    assert (placed.actor, placed.predicted_hit) == ("b", 0)
    assert placed.recompute_s == pytest.approx((90 - 50) / 100)
    assert placed.cost_s == pytest.approx(0.4 + 2.0)


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 40), st.floats(50, 500), st.floats(0.01, 1)), min_size=2),
    st.sets(st.sampled_from("abcdefgh"), max_size=4),
    st.sets(st.sampled_from("abcdefgh"), max_size=4),
    st.sampled_from([None, Link(0.01, 300.0), Link(1.0, 1e6)]),
)
def test_the_chosen_engine_is_the_cheapest_by_the_terms_that_are_kept(shape, roots, leaves, link):
    loads = {name: load(*numbers) for name, numbers in zip("abcdefgh", shape, strict=False)}
    one = wave(loads, holds(root="".join(roots), leaf="".join(leaves)), homes=("a", "b"), link=link)
    asked = branch()
    among = candidates(one, asked)
    (placed,) = place(wave(loads, one.holders, homes=("a", "b"), link=link), [asked])
    costs = {actor: one.price(asked, actor, "").cost_s for actor in among}
    assert placed.cost_s == pytest.approx(min(costs.values()))
    assert [one.price(asked, actor, "").cost_s for actor in among] == pytest.approx(one.costs_s(asked, among))


def test_away_from_home_costs_mu_times_the_prefill():
    loads = {"a": load(rows=100), "b": load()}
    (placed,) = put([branch()], loads, holds(leaf="a"), homes=("a",), mu=3.0)
    assert placed.actor == "b"
    assert placed.recompute_s == pytest.approx(90 / 100)
    assert placed.away_s == pytest.approx(3.0 * 90 / 100)


def test_away_from_home_the_trees_that_live_there_count():
    loads = {"a": load(rows=20), "b": load(demand=20.0), "c": load(demand=2.0)}
    assert put([branch()], loads, homes=("a",), mu=1.0)[0].actor == "c"
    (home_again,) = put([branch()], {"a": load(rows=20), "b": load(demand=20.0)}, homes=("a",), mu=1.0)
    assert home_again.actor == "a"


@pytest.mark.parametrize(("rows", "winner"), [(0, "a"), (2, "b")])
def test_an_overloaded_holder_loses(rows, winner):
    """a holds all 90 tokens, b none. a saves .4 s of prefill; two rows ahead of it there cost 2 s of decoding."""
    loads = {"a": load(rows=rows), "b": load()}
    (placed,) = put([branch()], loads, holds(leaf="a"), homes=("a", "b"))
    assert placed.actor == winner


def test_a_holder_with_a_long_prefill_queue_loses():
    loads = {"a": load(prefill_tokens=1000), "b": load()}
    assert put([branch()], loads, holds(leaf="a"), homes=("a", "b"))[0].actor == "b"


def test_a_slow_holder_loses():
    loads = {"a": load(step=1.0), "b": load()}
    assert put([branch()], loads, holds(leaf="a"), homes=("a", "b"))[0].actor == "b"


def test_a_wave_of_siblings_spreads_over_the_home_and_shares_what_it_plans():
    siblings = [branch(f"b{i}", ("root", "parent"), (50, 90)) for i in range(4)]
    placed = put(siblings, {"a": load(), "b": load()}, homes=("a", "b"))
    assert [p.actor for p in placed] == ["a", "b", "a", "b"]
    assert [p.predicted_hit for p in placed] == [0, 0, 90, 90]
    assert placed[2].wait_s == pytest.approx(90 / 100 + 2.0)


def test_siblings_that_fit_on_one_engine_stay_together():
    siblings = [branch(f"b{i}", ("root", "parent"), (50, 90), rows=1) for i in range(4)]
    placed = put(siblings, {"a": load(), "b": load()}, holds(parent="a"), homes=("a",), rows_per_engine=4)
    assert {p.actor for p in placed} == {"a"}
    assert {p.predicted_hit for p in placed} == {90}


def test_the_root_prefix_is_left_out_at_home_and_only_there():
    """Only the root is held on a: at home that is no advantage over b, which would get it anyway."""
    loads = {"a": load(rows=1), "b": load()}
    (placed,) = put([branch()], loads, holds(root="a"), homes=("a", "b"))
    assert (placed.actor, placed.predicted_hit) == ("b", 0)
    assert placed.recompute_s == pytest.approx(0.4)
    (root,) = put([branch("r", ("root",), (50,))], loads, homes=("a", "b"))
    assert root.recompute_s == 0


def test_of_two_equals_the_home_named_first_and_of_many_two_are_drawn():
    loads = {name: load() for name in "abcd"}
    assert put([branch()], loads, homes=("c", "a"))[0].actor == "c"
    assert put([branch()], loads, homes=("b", "a"))[0].actor == "b"
    drawn = {put([branch()], loads, homes="abcd", seed=seed)[0].actor for seed in range(40)}
    assert drawn == set("abc")  # of the two, the one named first
    assert len({put([branch()], loads, homes="abcd", seed=7)[0].actor for _ in range(5)}) == 1


def test_transfer_counts_where_it_is_faster_than_recomputing():
    loads = {"a": load(rows=50), "b": load()}
    slow = put([branch()], loads, holds(leaf="a"), homes=("b",), link=Link(5.0, 1e6))[0]
    assert (slow.actor, slow.source, slow.transfer_s) == ("b", "", None)
    fast = put([branch()], loads, holds(leaf="a"), homes=("b",), link=Link(0.1, 1000.0))[0]
    assert (fast.actor, fast.source) == ("b", "a")
    # The root goes to every home and is left out of the price, also where it is fetched.
    assert fast.transfer_s == pytest.approx(0.1 + 40 / 1000) and fast.recompute_s == pytest.approx(0.4)
    assert fast.cost_s == pytest.approx(fast.transfer_s + fast.decode_s)


def test_candidates_do_not_grow_with_the_cluster():
    names = [f"e{i:04}" for i in range(3000)]
    loads = {name: load() for name in names}
    held = {b"leaf": frozenset(names[100:150]), b"root": frozenset(names)}
    one = Wave(names, loads, lambda key: held.get(key, frozenset()), names[:1000], rows_per_engine=2)
    asked = branch()
    among = candidates(one, asked)
    assert len(among) <= 2 + MAX_HOLDERS + 4
    assert len(set(among) & held[b"leaf"]) >= MAX_HOLDERS
    assert len(one._plans) <= 1000 + 20  # a large home is read once a wave


def test_what_a_branch_should_avoid_is_avoided_while_there_are_others():
    loads = {name: load() for name in "abc"}
    assert put([branch(avoid=("a",))], loads, holds(leaf="a"))[0].actor in "bc"
    assert put([branch(avoid=("a", "b"))], loads, holds(leaf="a"))[0].actor == "c"
    assert put([branch(avoid=("a", "b", "c"))], loads, holds(leaf="a"))[0].actor in "abc"


# -- homes ---------------------------------------------------------------------------------------------------------
def homes_of(size, previous, busy, margin_s=0.0):
    return home(size, previous, sorted(busy, key=lambda a: (busy[a], a)), busy.__getitem__, margin_s)


def test_home_is_as_large_as_the_ready_rows_need():
    assert [home_size(rows, 0, 2, 4) for rows in (0, 1, 2, 4, 5, 99)] == [1, 1, 1, 2, 3, 4]


def test_home_is_no_larger_than_the_trees_share_of_busy_engines():
    assert [home_size(16, others, 2, 4) for others in (0, 16, 48, 240)] == [4, 2, 1, 1]
    assert home_size(4, 4, 16, 4) == 1, "engines that are not full take as much as fills them"


def test_a_new_home_is_the_engines_with_least_to_do():
    busy = {"a": 3.0, "b": 0.0, "c": 1.0, "d": 0.5}
    assert homes_of(1, (), busy) == ("b",)
    assert homes_of(3, (), busy) == ("b", "d", "c")


def test_a_former_home_stays_unless_another_engine_has_much_less_to_do():
    busy = {"a": 3.0, "b": 0.0, "c": 1.0}
    assert homes_of(1, ("a",), busy, margin_s=3.0) == ("a",)
    assert homes_of(1, ("a",), busy, margin_s=2.9) == ("b",)
    assert homes_of(2, ("a", "c"), busy, margin_s=2.0) == ("b", "c")
    assert homes_of(2, ("a",), busy, margin_s=9.0) == ("a", "b")
    assert homes_of(1, ("a", "c"), busy, margin_s=9.0) == ("a",)


def test_the_engines_that_hold_most_branches_come_first():
    branches = [branch(f"b{i}", ("root", leaf), (5, 9)) for i, leaf in enumerate(("x", "y", "y"))]
    held = holds(x="a", y="b", root="abc")
    assert by_usefulness(["c", "a", "b"], branches, held) == ["b", "a", "c"]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 60)), min_size=1, max_size=20),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_every_branch_is_placed_once_in_order_on_an_engine_that_is_up(shape, engines, rows_per_engine):
    loads = {f"e{i}": load() for i in range(engines)}
    branches = [branch(f"b{i}", (f"k{i}",), (length,), rows) for i, (rows, length) in enumerate(shape)]
    homes = sorted(loads)[: home_size(sum(rows for rows, _ in shape), 0, rows_per_engine, engines)]
    placed = put(branches, loads, homes=homes, rows_per_engine=rows_per_engine)
    assert [p.id for p in placed] == [b.id for b in branches]
    assert {p.actor for p in placed} <= set(loads)
    assert all(p.away_s > 0 for p in placed if p.actor not in homes)
    assert put(branches, loads, homes=homes, rows_per_engine=rows_per_engine) == placed
    rows = Counter(dict.fromkeys(homes, 0))
    for b, p in zip(branches, placed, strict=True):
        rows[p.actor] += b.rows
    if len(homes) > 1 and len({length for _, length in shape}) == 1:
        at_home = [rows[name] for name in homes]
        assert max(at_home) - min(at_home) <= 2 * max(n for n, _ in shape) + rows_per_engine


# -- measured rates ------------------------------------------------------------------------------------------------
def outcome(prefilled, prefill_s, tokens, decode_s):
    sample = Sample("x", tuple(range(tokens)), "step")
    return Outcome(
        "o", "p", "r", (sample,), "a", Cost(prefilled=prefilled, seconds={"prefill": prefill_s, "decode": decode_s})
    )


def test_rates_follow_what_was_measured():
    engine = EngineLoad(prefill_rate=100.0, step_s=0.1)
    engine.learn([outcome(200, 0.5, 10, 0.5), outcome(200, 0.5, 20, 0.5)], 2.0)
    assert (engine.prefill_rate, engine.step_s + engine.row_s) == pytest.approx((400.0, 0.05))
    engine.learn([outcome(200, 1.0, 20, 3.0)], 4.0)
    assert engine.prefill_rate == pytest.approx(400 + 0.1 * (200 - 400))
    assert engine.step_s + engine.row_s == pytest.approx(0.05 + 0.1 * (0.15 - 0.05))


def test_a_row_ahead_costs_its_share_of_a_full_batch_where_calls_are_served_one_by_one():
    engine, together = EngineLoad(), EngineLoad()
    for rows in (8, 56) * 20:
        engine.learn([outcome(0, 0.0, 20, 20 * (0.1 + 0.01 * rows))], rows=rows, batch_rows=64)
        together.learn(
            [outcome(0, 0.0, 20, 20 * (0.1 + 0.01 * rows) / rows)], rows=rows, batch_rows=64, concurrent=True
        )
    assert engine.step_s == pytest.approx(0.1, rel=0.2) and engine.row_s == pytest.approx(0.01, rel=0.3)
    assert engine.view().row_s == engine.row_s + engine.step_s / 64
    assert together.view().row_s == together.row_s == pytest.approx(engine.row_s)


def test_scoring_is_work_that_rows_bring():
    engine = EngineLoad(prefill_rate=100.0)
    assert engine.view().score_s == 0
    for _ in range(30):
        engine.learn([outcome(0, 0.0, 20, 0.5), outcome(0, 0.0, 20, 0.5)], rows=2, batch_rows=8)
        engine.learn_scores([Score("s", 0.5, "a", Cost(seconds={"score": 0.3}))])
    assert engine.score_s == pytest.approx(0.15) and engine.question_s == pytest.approx(0.3)
    for _ in range(100):
        engine.learn([outcome(0, 0.0, 20, 0.5)], rows=1, batch_rows=8)
    assert engine.score_s < 1e-4, "rows that nobody scores any more"
    before = engine.view().prefill_tokens
    engine.scoring = 5
    assert engine.view().prefill_tokens - before == 150
    wave = Wave(["a", "b"], {"a": Load(rows=10, score_s=0.15), "b": Load(rows=10)}, lambda key: (), rows_per_engine=8)
    assert wave.busy_s("a", 7) - wave.busy_s("b", 7) == pytest.approx(1.5)
    branch = Branch("x", (b"x",), (100,), 4, 7)
    priced = [wave.price(branch, actor, "rsbcm").cost_s for actor in "ab"]
    assert wave.costs_s(branch, "ab") == pytest.approx(priced)


def test_a_call_of_more_rows_than_a_batch_says_nothing_of_a_step():
    crowded = EngineLoad()
    crowded.learn([outcome(200, 0.5, 20, 0.5)], 2.5, rows=2, batch_rows=1)
    assert crowded.step_s == EngineLoad().step_s and not crowded.measured


@pytest.mark.parametrize(
    "found", [[], [outcome(0, 0.0, 0, 0.0)], [outcome(15, 1.0, 3, 1.0)], [outcome(999, 0.0, 99, 0.0)]]
)
def test_what_took_no_measurable_time_teaches_nothing(found):
    engine = EngineLoad(prefill_rate=100.0, step_s=0.1)
    engine.learn(found)
    assert (engine.prefill_rate, engine.step_s) == (100.0, 0.1)


def test_deadlines_need_measurements_and_follow_the_rates():
    engine = EngineLoad()
    engine.sent_rows = 1
    assert engine.late_s(1000, 100) is None and engine.limit_s(1000, 100, 600.0) == 600.0
    for _ in range(4):
        engine.learn([outcome(800, 1.0, 100, 2.0)], 3.0)
    assert engine.late_s(800, 100) == pytest.approx(3 * 3.0)
    assert engine.limit_s(8000, 100, 600.0) == pytest.approx(20 * 12.0)
    assert engine.limit_s(8000, 100, 5.0) == 5.0
    assert engine.limit_s(8, 1, 600.0) == 60.0
