"""Engines that share a GPU or cores: placement counts what the hardware bears, and moves nothing in vain."""

import asyncio

import pytest

from actors.dispatcher import PoolOptions
from actors.loads import LoadBook
from actors.placement import Load
from actors.placer import Assignment, Placer
from engine.text_engine import Latency
from tests.actors.test_loads import Clock, by_load, load
from tests.actors.test_loads import wave as assigned
from tests.actors.test_order_flow import OPTIONS, wave
from tests.actors.virtual import LATENCY, cluster, grow, prompt, run


def shared(slots, hardware="gpu", rows=0):
    return Load(0, rows, 100.0, 0.1, hardware=hardware, slots=slots)


def test_engines_that_share_hardware_count_for_what_it_bears():
    found = LoadBook(Clock())
    loads = {"a": shared(2), "b": shared(2), "c": shared(2), "d": shared(1, "other"), "e": load()}
    found.report("d", loads, whole=True)
    found.report("one", {"a": shared(2)}, whole=True)
    assert found.width("d") == 4 and found.width("one") == 1
    found.report("d", {"e": shared(2), "a": None}, whole=False)
    assert found.width("d") == 3
    found.report("d", {"b": shared(1, "other")}, whole=False)
    assert found.width("d") == 3  # c, e on one; b, d on the other, which bears one
    found.report("d", dict.fromkeys("bcde"), whole=False)
    found.report("one", {"a": None}, whole=False)
    assert not found._hardware and not found._of


def test_engines_are_rivals_once_as_many_work_as_their_hardware_bears():
    found = LoadBook(Clock())
    found.report("d", {"a": shared(2), "b": shared(2, rows=3), "c": shared(2), "e": load(9)}, whole=True)
    assert not found.rivals("a") and not found.rivals("e") and not found.rivals("unknown")
    found.settle("c", 4, 1)
    assert sorted(found.rivals("a")) == ["a", "b", "c"]
    found.settle("c", -4, -1)
    assert not found.rivals("a")
    found.report("d", {"a": shared(2, rows=1), "c": shared(2, "other")}, whole=False)
    assert not found.rivals("a")  # two engines on two slots never stand in each other's way


def test_a_tree_does_not_move_between_engines_on_full_hardware():
    def homes(hardware):
        found = Placer(lambda key: (), clock=Clock())
        report = {name: Load(0, 0, 1000.0, 0.1, hardware=hardware, slots=1) for name in "ab"}
        found.assign(Assignment("", (), report, 64, driver="d"))
        first = [found.assign(assigned("p", [b"x"]))[0].actor for _ in range(3)]
        busy = {first[0]: Load(0, 600, 1000.0, 0.1, hardware=hardware, slots=1)}
        found.assign(Assignment("", (), busy, 64, driver="d", whole=False))
        later = [found.assign(assigned("p", [b"x"]))[0].actor for _ in range(20)]
        return set(first), set(later)

    alone, moved = homes("")
    assert len(alone) == 1 and moved != alone
    assert homes("gpu")[1] == homes("gpu")[0]


def test_a_wide_tree_is_spread_over_as_many_engines_as_work_at_full_speed():
    def size(slots):
        found = Placer(lambda key: (), clock=Clock())
        report = {name: Load(0, 0, 1000.0, 0.1, hardware="cpu", slots=slots) for name in "abcd"}
        found.assign(Assignment("", (), report, 2, driver="d"))
        placed = found.assign(assigned("p", [b"%d" % i for i in range(16)]))
        return len({one.actor for one in placed})

    assert [size(slots) for slots in (1, 2, 4)] == [1, 2, 4]


@pytest.mark.parametrize("slots", [1, 2])
def test_what_waits_for_an_engine_stays_where_the_idle_one_shares_hardware_that_is_full(slots):
    """On the GPU that both share the work is done no sooner by moving, and the prompt would be prefilled twice."""

    async def main(clock):
        pool = cluster(clock, 2, options=OPTIONS, latency=Latency(0.01, 8000.0, 0.1), hardware=("gpu", slots))
        await asyncio.gather(*(pool.expand(wave(name, 4)) for name in "pq"))
        await asyncio.gather(*(pool.expand(wave("p", 4, root=prompt("p", 400))) for _ in range(6)))
        pool.check_integrity()
        return pool, pool.flow.counts["moved"]

    pool, moved = run(main)
    assert all(load.hardware == "gpu" and load.slots == slots for load in pool.fleet.loads.values())
    assert (moved > 0) is (slots == 2)


def test_what_waits_behind_a_call_that_is_late_goes_even_to_an_engine_on_the_same_hardware():
    """The engine may hang: then its hardware is free, whatever is outstanding there."""

    async def main(clock):
        pool = cluster(clock, 2, options=OPTIONS, latency=Latency(0.01, 8000.0, 0.1), hardware=("gpu", 1))
        for _ in range(6):
            await asyncio.gather(*(pool.expand(wave(name, 4)) for name in "pq"))
        slow = pool.engines[next(iter(pool._local.used(pool.keys.of((prompt("p", 400),))[0])))]
        slow.delays.append(500.0)
        found = await asyncio.gather(*(pool.expand(wave("p", 4, root=prompt("p", 400))) for _ in range(3)))
        assert all(outcome.error is None for one in found for outcome in one)
        return clock(), pool.flow.counts["moved"]

    seconds, moved = run(main)
    assert seconds < 100 and moved > 0


def on_two_gpus(layout, problems, beam):
    """(seconds, calls by GPU) of problems on four engines, of which two share a GPU that serves one call at a time."""

    async def main(clock):
        pool = cluster(clock, 4, options=PoolOptions(rows_per_engine=16, patience_s=30.0), latency=LATENCY)
        locks = {gpu: asyncio.Lock() for gpu in layout}
        for engine, gpu in zip(pool.engines.values(), layout, strict=True):
            engine.busy, engine.hardware = locks[gpu], (gpu, 1)
        await asyncio.gather(*(grow(pool, f"w{i}", prompt("w", 400), **TREE, beam=4, depth=2) for i in range(8)))
        before = {name: len(engine.calls) for name, engine in pool.engines.items()}
        began, used = clock(), dict.fromkeys(layout, 0)
        await asyncio.gather(
            *(grow(pool, f"p{i}", prompt(f"p{i}", 400), **TREE, beam=beam, depth=10) for i in range(problems))
        )
        for (name, engine), gpu in zip(pool.engines.items(), layout, strict=True):
            used[gpu] += len(engine.calls) - before[name]
        return clock() - began, used

    return run(main)


TREE = {"branching": 4, "step": 16}


@pytest.mark.parametrize("layout", ["aabb", "abab"])
def test_trees_go_to_hardware_that_is_free(layout):
    """However engines are named: with two on each GPU, the second tree is not for the first one's GPU."""
    seconds, used = on_two_gpus(layout, problems=2, beam=4)
    alone, _ = on_two_gpus(layout, problems=1, beam=4)
    assert used == {"a": 10, "b": 10} and seconds == pytest.approx(alone, rel=0.02)


def test_a_wide_tree_takes_an_engine_on_each_gpu():
    (first, used), (second, _) = on_two_gpus("aabb", 1, 8), on_two_gpus("abab", 1, 8)
    assert min(used.values()) >= 9 and first == pytest.approx(second, rel=0.02)


def test_engines_by_load_begin_with_those_that_slow_nobody():
    found = LoadBook(Clock())
    found.observe(20, 2)
    loads = {"a": shared(1, "x", 3), "b": shared(1, "x"), "c": shared(1, "y"), "d": shared(1, "y"), "e": load(2)}
    found.report("d", loads, whole=True)
    assert by_load(found) == ["c", "e", "a", "b", "d"]
    found.report("d", {"a": shared(1, "x")}, whole=False)
    assert by_load(found) == ["a", "c", "e", "b", "d"]


@pytest.mark.parametrize("slots", [1, 2])
def test_rivals_are_more_than_their_hardware_bears(slots):
    async def main(clock):
        pool = cluster(clock, 2, options=OPTIONS, hardware=("cpu", slots))
        await asyncio.gather(*(pool.expand(wave(name, 4)) for name in "pq"))
        await asyncio.sleep(1)
        for one in pool.fleet.loads.values():
            one.send(1, clock())
        found = pool.fleet.rivals("e0", "e1")
        for one in pool.fleet.loads.values():
            one.send(-1, clock())
        return found

    assert run(main) is (slots == 1)


@pytest.mark.parametrize("told", [{"hardware": "x", "slots": 0}, {"hardware": "x", "slots": None}, {"hardware": 7}, {}])
def test_what_an_engine_says_of_its_hardware_is_not_trusted(told):
    async def main(clock):
        pool = cluster(clock, 2, options=OPTIONS)
        for engine in pool.engines.values():
            engine.stats = lambda: asyncio.sleep(0, told)
        for _ in range(3):
            await asyncio.gather(*(pool.expand(wave(name, 4)) for name in "pq"))
        return {load.slots for load in pool.fleet.loads.values()}

    assert run(main) == {1}
