"""Engines that share a GPU or cores: placement counts what the hardware bears, and moves nothing in vain."""

import asyncio

import pytest

from actors.loads import LoadBook
from actors.placement import Load
from actors.placer import Assignment, Placer
from engine.text_engine import Latency
from tests.actors.test_loads import Clock, load
from tests.actors.test_loads import wave as assigned
from tests.actors.test_order_flow import OPTIONS, wave
from tests.actors.virtual import cluster, prompt, run


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
