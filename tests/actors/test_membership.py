"""Engines join, are drained, leave, die and come back while searches run: the same trees, and books that balance."""

import asyncio
from dataclasses import replace

import pytest

from actors.dispatcher import PoolOptions
from actors.membership import Membership, Sight
from tests.actors.virtual import LATENCY, VirtualEngine, cluster, grow, prompt, run

OPTIONS = PoolOptions(rows_per_engine=8, patience_s=30.0)
TREE = {"beam": 2, "branching": 4, "depth": 5, "step": 40}


def search(disturb=None, engines=2, trees=8, concurrent=False, policy="rsbcm"):
    """(survivors of every level of every tree, seconds, pool), with `disturb(pool, clock)` under way beside them."""

    async def main(clock):
        options = replace(OPTIONS, placement=policy)
        pool = cluster(clock, engines, step=40, options=options, concurrent=concurrent)
        beside = asyncio.ensure_future(disturb(pool, clock)) if disturb else None
        grown = await asyncio.gather(*(grow(pool, f"p{i}", prompt(f"p{i}", 600), **TREE) for i in range(trees)))
        seconds = clock()
        if beside is not None:
            await beside
        assert all(outcome.error is None for _, found in grown for outcome in found)
        await asyncio.sleep(10)
        pool.check_integrity()
        assert all(load.rows == load.calls == load.sent_rows == 0 for load in pool.fleet.loads.values())
        return [kept for kept, _ in grown], seconds, pool

    return run(main)


def another(pool, name):
    rsbcm = pool.index.rsbcm
    return VirtualEngine(name, rsbcm, pool.fleet.clock, LATENCY, step=40, concurrent=pool.engines["e0"].concurrent)


@pytest.fixture(scope="module")
def undisturbed():
    return search()


@pytest.mark.parametrize("concurrent", [False, True])
def test_engines_that_join_take_their_share(undisturbed, concurrent):
    async def join(pool, clock):
        await asyncio.sleep(2.0)
        for name in ("n0", "n1"):
            pool.add(another(pool, name))
        with pytest.raises(ValueError, match="'n0' already"):
            pool.add(another(pool, "n0"))

    trees, seconds, pool = search(join, concurrent=concurrent)
    assert trees == undisturbed[0]
    assert seconds < 0.85 * undisturbed[1]
    assert all(pool.engines[name].calls for name in ("n0", "n1"))
    assert len(pool.engines["n0"].calls[0]) <= 2  # a slow start: a quarter of its rows


@pytest.mark.parametrize("concurrent", [False, True])
@pytest.mark.parametrize("grace_s", [30.0, 0.0])
def test_a_drained_engine_loses_nothing_and_gets_nothing_new(undisturbed, grace_s, concurrent):
    seen = {}

    async def leave(pool, clock):
        await asyncio.sleep(2.0)
        engine = pool.engines["e1"]
        calls = len(engine.calls)
        handle = await pool.drain("e1", grace_s)
        seen.update(handle=handle is engine, calls=len(engine.calls) - calls, at=clock())

    trees, _, pool = search(leave, concurrent=concurrent)
    assert trees == undisturbed[0]
    assert seen["handle"] and seen["calls"] == 0 and list(pool.engines) == ["e0"]
    assert 2.0 <= seen["at"] <= (2.0 if grace_s == 0 else 4.0)
    assert not pool.index.rsbcm.index.held("e1", (pool.keys.of((prompt("p0", 600),))[0],), (599,))
    assert pool.index.rsbcm.placer.loads.names(pool._assigner.driver) == ["e0"]


def test_all_engines_leave_and_others_come(undisturbed):
    async def swap(pool, clock):
        await asyncio.sleep(2.0)
        await asyncio.gather(pool.remove("e0"), pool.remove("e1"))
        assert not pool.engines
        await asyncio.sleep(5.0)
        pool.add(VirtualEngine("n0", pool.index.rsbcm, clock, LATENCY, step=40))

    trees, _, pool = search(swap)
    assert trees == undisturbed[0] and list(pool.engines) == ["n0"]


@pytest.mark.parametrize("grace_s", [30.0, 0.0])
def test_an_engine_that_leaves_in_the_moment_it_is_called_loses_nothing(grace_s):
    async def main(clock):
        pool = cluster(clock, 2, step=40, options=OPTIONS)
        growing = [
            asyncio.ensure_future(grow(pool, f"p{i}", prompt(f"p{i}", 600), beam=1, branching=4, depth=2, step=40))
            for i in range(4)
        ]
        while not pool.flow.counts["calls"]:
            await asyncio.sleep(0)
        await pool.drain("e0", grace_s)
        return [outcome.error for _, found in await asyncio.gather(*growing) for outcome in found]

    assert set(run(main)) == {None}


@pytest.mark.parametrize("late_s", [0.0, 1.0])
def test_a_drain_that_is_overtaken_ends_and_leaves_the_next_engine_of_the_name_alone(late_s):
    async def main(clock):
        pool = cluster(clock, 2, step=40, options=OPTIONS)
        old = pool.engines["e0"]
        old.delays.append(50.0)
        growing = asyncio.ensure_future(grow(pool, "p", prompt("p", 600), beam=1, branching=4, depth=1, step=40))
        while not old.calls:
            await asyncio.sleep(0)
        drains = [asyncio.ensure_future(pool.drain("e0", grace_s)) for grace_s in (1.0 + late_s, 30.0)]
        await asyncio.sleep(1.0)
        await pool.remove("e0")
        pool.add(VirtualEngine("e0", pool.index.rsbcm, clock, LATENCY, step=40))
        handles = [await drain for drain in drains]
        assert handles == [old, old] and clock() < 2
        assert pool.fleet.up() == ["e1", "e0"]
        return [outcome.error for outcome in (await growing)[1]]

    assert run(main) == [None]


def test_all_engines_down_while_the_index_thinks():
    async def main(clock):
        pool = cluster(clock, 2, step=40, options=OPTIONS)
        inner, first = pool.index.assign, [True]

        async def thinking(wave):
            if first.pop() if first else False:
                for engine in pool.engines.values():
                    engine.dead = True
                    pool.fleet.mark_down(engine.name, "gone")
                asyncio.get_running_loop().call_later(5.0, lambda: [revive(e) for e in pool.engines.values()])
                await asyncio.sleep(1.0)
                return []
            return await inner(wave)

        def revive(engine):
            engine.dead = False

        pool.index.assign = thinking
        _, found = await grow(pool, "p", prompt("p", 600), beam=1, branching=4, depth=2, step=40)
        return [outcome.error for outcome in found], clock()

    errors, seconds = run(main)
    assert set(errors) == {None} and seconds > 5


def test_nobody_left_is_an_error_after_patience_and_no_hang():
    async def main(clock):
        pool = cluster(clock, 1, step=40, options=PoolOptions(rows_per_engine=8, patience_s=20.0))
        await pool.remove("e0")
        with pytest.raises(KeyError, match="no engine 'e0'"):
            await pool.drain("e0")
        _, found = await grow(pool, "p", prompt("p", 60), beam=1, branching=2, depth=1, step=4)
        return [outcome.error for outcome in found], clock()

    errors, seconds = run(main)
    assert errors == ["no engine answers"] and 20 <= seconds < 25


@pytest.mark.parametrize("concurrent", [False, True])
def test_an_engine_that_dies_and_comes_back_changes_no_tree(undisturbed, concurrent):
    async def die(pool, clock):
        await asyncio.sleep(2.0)
        engine = pool.engines["e1"]
        engine.dead = True
        await asyncio.sleep(3.0)
        assert not pool.fleet.is_up("e1")
        engine.dead, engine.actor = False, engine.make()
        calls = len(engine.calls)
        await asyncio.sleep(3.0)
        assert len(engine.calls) > calls

    trees, _, pool = search(die, concurrent=concurrent)
    assert trees == undisturbed[0]
    assert pool.flow.counts["retries"] > 0


def test_the_same_tree_for_any_policy_number_of_engines_and_batching(undisturbed):
    for engines, concurrent, policy in ((1, False, "rsbcm"), (4, True, "random"), (5, False, "longest_match")):
        assert search(engines=engines, concurrent=concurrent, policy=policy)[0] == undisturbed[0]


def test_leaving_a_wave_early_frees_its_credits():
    async def main(clock):
        pool = cluster(clock, 1, step=40, options=OPTIONS)
        one = asyncio.ensure_future(grow(pool, "p", prompt("p", 600), **TREE))
        await asyncio.sleep(0.5)
        one.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(5)
        assert all(load.rows == load.calls == load.prefill_tokens == 0 for load in pool.fleet.loads.values())
        _, found = await grow(pool, "q", prompt("q", 600), **TREE)
        return found

    assert all(outcome.error is None for outcome in run(main))


def test_a_fault_of_the_index_reaches_the_search_and_no_search_hangs():
    async def main(clock):
        pool = cluster(clock, 1, step=40, options=OPTIONS)

        async def broken(wave):
            raise ZeroDivisionError("a bug")

        pool.index.assign = broken
        with pytest.raises(ZeroDivisionError):
            await grow(pool, "p", prompt("p", 600), **TREE)

    run(main)


# -- following a cluster -------------------------------------------------------------------------------------------
class Machines:
    """Nodes that come and go, one engine each."""

    def __init__(self, pool, room=0, broken=False):
        self.pool, self.room, self.broken = pool, room, broken
        self.leaving, self.started, self.ended = {}, [], []

    async def look(self):
        return Sight(self.room - sum(name not in self.pool.engines for name in self.started), dict(self.leaving))

    def start(self, name):
        self.started.append(name)
        engine = another(self.pool, name)
        engine.dead = self.broken
        return engine

    def end(self, handle):
        self.ended.append(handle.name)


def test_a_growing_and_shrinking_cluster_is_followed(undisturbed):
    machines = None

    async def change(pool, clock):
        nonlocal machines
        machines = Machines(pool)
        watching = asyncio.ensure_future(Membership(pool, machines, first=2, look_s=0.5).watch())
        await asyncio.sleep(1.0)
        machines.room = 2
        await asyncio.sleep(1.0)
        machines.room = 0
        assert list(pool.engines) == ["e0", "e1", "engine-2", "engine-3"]
        machines.leaving = {"e0": 5.0, "nobody": 1.0}
        await asyncio.sleep(6.0)
        assert machines.ended == ["e0"] and "e0" not in pool.engines
        watching.cancel()

    trees, _, pool = search(change)
    assert trees == undisturbed[0]
    assert machines.started == ["engine-2", "engine-3"]
    assert pool.engines["engine-2"].calls


def test_an_engine_that_cannot_start_is_given_up_and_said():
    async def main(clock):
        pool = cluster(clock, 1)
        failures = []
        pool.on_failure = lambda who, why: failures.append((who, why))
        machines = Machines(pool, room=1, broken=True)
        membership = Membership(pool, machines, first=7)
        await membership.look()
        machines.room = 0
        await asyncio.sleep(1)
        return failures, machines.ended, list(pool.engines)

    failures, ended, engines = run(main)
    assert failures == [("engine-7", "did not join: still dead")]
    assert ended == ["engine-7"] and engines == ["e0"]


def test_where_no_engine_can_start_one_is_tried_ever_more_seldom_until_one_starts():
    async def main(clock):
        pool = cluster(clock, 1)
        machines = Machines(pool, broken=True)
        machines.look = lambda: asyncio.sleep(0, Sight(room=2))
        watching = asyncio.ensure_future(Membership(pool, machines, first=1, look_s=2.0).watch())
        times = []
        start = machines.start
        machines.start = lambda name: times.append(clock()) or start(name)
        await asyncio.sleep(3600)
        assert times[:8:2] == times[1:8:2] == [0.0, 2.0, 6.0, 14.0]
        assert len(times) < 50 and times[-1] > 3300
        machines.broken = False
        await asyncio.sleep(300)
        machines.broken, began = True, len(times)
        await asyncio.sleep(15)
        watching.cancel()
        return [round(at - times[began]) for at in times[began::2]]

    assert run(main) == [0, 2, 6, 14]


def test_a_notice_that_is_shortened_counts():
    async def main(clock):
        pool = cluster(clock, 2, step=40, options=OPTIONS)
        pool.engines["e0"].delays.append(1000.0)
        growing = asyncio.ensure_future(grow(pool, "p", prompt("p", 600), beam=1, branching=4, depth=1, step=40))
        machines = Machines(pool)
        watching = asyncio.ensure_future(Membership(pool, machines, first=2).watch())
        await asyncio.sleep(0.1)
        machines.leaving = {"e0": 600.0}
        await asyncio.sleep(4.0)
        assert list(pool.engines) == ["e0", "e1"]
        machines.leaving = {"e0": 10.0}
        await asyncio.sleep(12.0)
        assert list(pool.engines) == ["e1"] and set(machines.ended) == {"e0"}
        watching.cancel()
        return [outcome.error for outcome in (await growing)[1]]

    assert run(main) == [None]
