"""What is outstanding over all drivers, engines by load, homes over time, and drivers that share an index (case 59)."""

import asyncio
from contextlib import closing
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from actors.dispatcher import PoolOptions
from actors.loads import EXPIRY_S, LoadBook
from actors.placement import Branch, Load
from actors.placer import Assignment, Placer
from actors.rsbcm import RSBCM
from tests.actors.virtual import VirtualEngine, cluster, grow, order, prompt, run


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def load(rows=0, prefill=0):
    return Load(prefill, rows, 100.0, 0.1)


def book(**loads):
    found = LoadBook(Clock())
    found.observe(20, 2)
    assert found.report("d", {name: load(rows) for name, rows in loads.items()}, whole=True)
    return found


def by_load(book, driver="d"):
    with closing(book.lightest(driver)) as lightest:
        return list(lightest)


def test_only_what_changed_is_told():
    found = book(a=3, b=0, c=1)
    assert by_load(found) == ["b", "c", "a"]
    assert found.report("d", {"b": load(9), "a": None}, whole=False)
    assert by_load(found) == ["c", "b"] and sorted(found.names("d")) == ["b", "c"]
    assert found.report("d", {"b": load(0)}, whole=True)
    assert by_load(found) == ["b"] and list(found.actors) == ["b"]


def test_changes_of_a_driver_that_is_not_known_are_refused():
    found = book(a=1)
    assert not found.report("other", {"a": load(5)}, whole=False)
    assert found.actors["a"].rows == 1


def test_drivers_add_up_and_a_silent_one_is_forgotten():
    found = book(a=3, b=0)
    found.report("e", {"a": load(0), "b": load(7), "c": load(1)}, whole=True)
    assert {name: standing.rows for name, standing in found.actors.items()} == {"a": 3, "b": 7, "c": 1}
    assert by_load(found) == ["a", "b"] and by_load(found, "e") == ["c", "a", "b"]
    found._clock.now = EXPIRY_S / 2
    found.report("d", {}, whole=False)
    found._clock.now = EXPIRY_S + 1
    found.report("d", {}, whole=False)
    assert found.drivers() == 1
    assert {name: standing.rows for name, standing in found.actors.items()} == {"a": 3, "b": 0}


def test_trees_that_live_somewhere_count_before_their_rows_come():
    found = book(a=0, b=1)
    found.settle("a", 4.0, 1)
    assert by_load(found) == ["b", "a"]
    found.settle("a", -4.0, -1)
    found.settle("gone", 4.0, 1)
    assert by_load(found) == ["a", "b"]


def test_what_trees_bring_outlasts_the_drivers_report_and_goes_with_the_trees():
    found = book(a=0, b=1)
    found.settle("a", 4.0, 1)
    found.settle("a", 3.0, 1)
    found._clock.now += EXPIRY_S + 1
    assert not found.report("d", {}, whole=False)
    found.report("d", {"a": load(), "b": load(1)}, whole=True)
    assert found.actors["a"].demand == 7.0 and by_load(found) == ["b", "a"]
    found.settle("a", -4.0, -1)
    assert found.actors["a"].demand == 3.0
    found.report("d", {"a": None, "b": None}, whole=False)
    assert not found.actors and by_load(found) == []
    found.settle("a", -3.0, -1)
    found.report("d", {"a": load()}, whole=False)
    assert found.actors["a"].demand == found.actors["a"].trees == 0


names = st.sampled_from("abcde")


@given(st.lists(st.tuples(names, st.one_of(st.none(), st.integers(0, 9)), st.booleans()), max_size=60))
def test_the_order_is_that_of_the_loads_whatever_happened(steps):
    found, rows, demand = book(), {}, {}
    for name, number, settles in steps:
        if settles and number is not None:
            if name in rows:
                found.settle(name, number, 1)
                demand[name] = demand.get(name, 0) + number
        else:
            found.report("d", {name: None if number is None else load(number)}, whole=False)
            rows.pop(name, None) if number is None else rows.update({name: number})
        first = next(iter(by_load(found)), None)
        busy = {n: max(count, demand.get(n, 0)) for n, count in rows.items()}
        assert by_load(found) == sorted(rows, key=lambda n: (busy[n], n))
        assert first is None or busy[first] == min(busy.values())


# -- homes over time -----------------------------------------------------------------------------------------------
def wave(tree, leaves, rows=2, driver="d", whole=False, loads=None):
    asked = tuple(Branch(f"{tree}{leaf}", (tree.encode(), leaf), (50, 90), rows, 20) for leaf in leaves)
    return Assignment(tree, asked, loads or {}, 2, driver=driver, whole=whole)


def placer(held=None, engines="abcd"):
    found = Placer(lambda key: frozenset((held or {}).get(key, "")), clock=Clock())
    assert found.assign(Assignment("", (), {name: load() for name in engines}, 2, driver="d")) == []
    return found


def test_trees_spread_and_each_stays():
    found = placer()
    first = [found.assign(wave(tree, [b"x"]))[0].actor for tree in ("p", "q", "r", "s")]
    assert sorted(first) == list("abcd")
    assert [found.assign(wave(tree, [b"x"]))[0].actor for tree in ("p", "q", "r", "s")] == first
    found.end_tree("q")
    assert found.assign(wave("new", [b"x"]))[0].actor == first[1]
    assert found.stats()["trees"] == 4


def test_a_home_grows_with_what_is_ready_and_keeps_the_engines_that_hold_most():
    held = {b"y": "c"}
    found = placer(held)
    assert found.assign(wave("p", [b"x"]))[0].actor == "a"
    grown = found.assign(wave("p", [b"1", b"2", b"3", b"4"]))
    assert {placed.actor for placed in grown} == set("abcd") and not any(placed.away_s for placed in grown)
    assert found.assign(wave("p", [b"y"]))[0].actor == "c"


def homes_of(found, tree):
    return {placed.actor for placed in found.assign(wave(tree, [b"1", b"2", b"3", b"4"]))}


def test_among_many_trees_a_home_is_its_share_and_grows_again_when_they_end():
    found = placer()
    assert homes_of(found, "p") == set("abcd")
    others = [f"t{i}" for i in range(12)]
    for other in others:
        homes_of(found, other)
    assert len(homes_of(found, "p")) == 1
    for other in others:
        found.end_tree(other)
    assert homes_of(found, "p") == set("abcd")
    found.end_tree("p")
    assert found._rows == 0


def test_trees_that_fell_silent_do_not_count_for_ever():
    found = placer()
    for i in range(12):
        homes_of(found, f"t{i}")
    found._clock.now = 1000.0
    found.assign(Assignment("", (), {name: load() for name in "abcd"}, 2, driver="d"))
    homes_of(found, "p")
    assert homes_of(found, "p") == set("abcd")
    assert found.stats()["trees"] == 1


def test_a_restarted_index_finds_homes_again_where_the_kv_is():
    found = placer({b"x": "d"})
    assert found.assign(wave("p", [b"x"]))[0].actor == "d"


def test_an_index_that_does_not_know_the_driver_asks_for_everything():
    found = placer()
    assert found.assign(wave("p", [b"x"], driver="new")) == []
    whole = wave("p", [b"x"], driver="new", whole=True, loads={"a": load()})
    assert found.assign(whole)[0].actor == "a"


def test_a_restarted_index_is_told_everything_by_the_dispatcher():
    async def main(clock):
        pool = cluster(clock, 3, step=8, options=PoolOptions(rows_per_engine=8))
        await grow(pool, "p", prompt("p", 100), beam=1, branching=4, depth=2, step=8)
        pool.index.rsbcm = RSBCM()
        _, found = await grow(pool, "q", prompt("q", 100), beam=1, branching=4, depth=2, step=8)
        (driver,) = pool.index.rsbcm.placer.loads._drivers
        return found, pool.index.rsbcm.placer.loads.names(driver)

    found, engines = run(main)
    assert all(outcome.error is None for outcome in found)
    assert sorted(engines) == ["e0", "e1", "e2"]


# -- two drivers ---------------------------------------------------------------------------------------------------
def drivers(count, trees=8):
    """Share of path tokens reused, prefilled tokens and seconds of the same trees, dealt out to `count` drivers."""

    async def main(clock):
        rsbcm = RSBCM()
        pools = [cluster(clock, 4, rsbcm=rsbcm, step=40, options=PoolOptions(rows_per_engine=8)) for _ in range(1)]
        engines = list(pools[0].engines.values())
        for _ in range(count - 1):
            more = cluster(clock, 4, rsbcm=rsbcm, options=PoolOptions(rows_per_engine=8))
            more.fleet.engines = {engine.name: engine for engine in engines}
            pools.append(more)
        grown = await asyncio.gather(
            *(
                grow(pools[i % count], f"p{i}", prompt(f"p{i}", 800), beam=2, branching=4, depth=4, step=40)
                for i in range(trees)
            )
        )
        outcomes = [outcome for _, found in grown for outcome in found]
        prefilled = sum(outcome.cost.prefilled for outcome in outcomes)
        reused = sum(outcome.cost.reused["exact"] for outcome in outcomes)
        await asyncio.sleep(10)
        assert all(standing.rows == standing.prefill_tokens == 0 for standing in rsbcm.placer.loads.actors.values())
        assert rsbcm.placer.loads.drivers() == count
        return reused / (reused + prefilled), prefilled, clock(), {o.engine for o in outcomes}

    return run(main)


def test_case_59_two_drivers_on_one_cluster_share_the_index():
    one, two = drivers(1), drivers(2)
    assert two[0] >= one[0] - 0.01
    assert two[2] <= 1.2 * one[2]
    assert two[3] == one[3] == {"e0", "e1", "e2", "e3"}


def test_a_driver_sees_what_another_has_outstanding():
    async def main(clock):
        rsbcm = RSBCM()
        first = cluster(clock, 2, rsbcm=rsbcm, step=400, options=PoolOptions(rows_per_engine=4))
        second = cluster(clock, 2, rsbcm=rsbcm, options=PoolOptions(rows_per_engine=4))
        second.fleet.engines = dict(first.engines)
        long = asyncio.ensure_future(first.expand([order("p", "r", (prompt("p", 100),), 4, 400)]))
        await asyncio.sleep(0.1)
        (other,) = await second.expand([order("q", "r", (prompt("q", 100),), 4, 400)])
        (one,) = await long
        return one.engine, other.engine

    one, other = run(main)
    assert {one, other} == {"e0", "e1"}


def test_a_driver_that_leaves_is_forgotten():
    assert VirtualEngine  # engines live on without it
    found = placer()
    found.assign(Assignment("", (), {"a": load(50), "b": load()}, 2, driver="dying"))
    assert found.loads.actors["a"].rows == 50
    found.loads._clock.now += EXPIRY_S + 1
    found.assign(Assignment("", (), {name: load() for name in "abcd"}, 2, driver="d"))
    assert found.loads.actors["a"].rows == 0 and found.stats()["drivers"] == 1


def test_an_order_that_is_placed_again_leaves_its_tree_as_large_as_it_was():
    found = placer(engines="abcdefgh")
    leaves = [b"%02d" % number for number in range(16)]
    for _ in range(3):
        found.assign(wave("p", leaves))
    before, waves = set(found.trees["p"].home), found.trees["p"].waves
    demand = {name: standing.demand for name, standing in found.loads.actors.items()}
    found.assign(replace(wave("p", leaves[:1]), again=True))
    assert set(found.trees["p"].home) == before and found.trees["p"].waves == waves and len(before) > 1
    assert {name: standing.demand for name, standing in found.loads.actors.items()} == demand
    found.assign(wave("p", leaves[:1]))
    assert len(found.trees["p"].home) == 1
