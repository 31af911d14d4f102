"""A driver and an index that hangs, as to time: what asking it costs, and when it is used again."""

import asyncio

import pytest

from actors.handles import IndexDownError, InlineIndex
from actors.rsbcm import RSBCM
from tests.actors.virtual import cluster, grow, order, prompt, run

LIMIT_S = 5.0


class HungIndex:
    """While it is `hung`, every call to it ends with the limit that calls to an index have."""

    def __init__(self, clock):
        self.rsbcm = RSBCM(clock)
        self.hung, self.reports, self.waves = False, [], 0
        self._clock, self._inner = clock, InlineIndex(self.rsbcm)

    def __getattr__(self, name):
        async def call(*args):
            if name == "assign" and args[0].branches:
                self.waves += 1
            elif name == "assign":
                self.reports.append(self._clock())
            if self.hung:
                await asyncio.sleep(LIMIT_S)
                raise IndexDownError("no answer")
            return await getattr(self._inner, name)(*args)

        return call


def pool_with(index, clock, **options):
    pool = cluster(clock, 2, rsbcm=index.rsbcm, **options)
    pool.index = pool._assigner.index = pool._pins._index = index
    return pool


async def problem(pool, number):
    root = prompt(f"p{number}", 400)
    kept, _ = await grow(pool, f"p{number}", root, beam=4, branching=4, depth=8, step=16)
    await pool.note_scores([((root,), 0.5, 0)])
    await pool.finish(f"p{number}", [(root,)])
    return kept


def test_an_index_that_hangs_costs_its_limit_once():
    def took(hung):
        async def main(clock):
            index = HungIndex(clock)
            pool = pool_with(index, clock)
            index.hung = hung
            kept = [await problem(pool, number) for number in range(3)]
            return kept, clock()

        return run(main)

    (trees, fast), (same, slow) = took(False), took(True)
    assert same == trees and slow <= fast + LIMIT_S + 0.5


def test_searches_wait_together_for_an_index_that_a_report_asks_again_after_growing_pauses():
    async def main(clock):
        index = HungIndex(clock)
        pool = pool_with(index, clock)
        index.hung = True
        await asyncio.gather(*(problem(pool, number) for number in range(4)))
        while clock() < 400.0:
            await pool.expand([order("long", "r", (prompt("long", 100),), 1, 8)])
            await asyncio.sleep(1.0)
        return index

    index = run(main)
    pauses = [b - a for a, b in zip(index.reports, index.reports[1:], strict=False)]
    assert index.waves == 4
    assert pauses[0] < LIMIT_S and pauses[:5] == sorted(pauses[:5])
    assert pauses[5:] == pytest.approx([60.0] * len(pauses[5:]), abs=4.0)


def test_an_index_that_answers_again_is_told_everything_and_used():
    async def main(clock):
        index = HungIndex(clock)
        pool = pool_with(index, clock)
        await problem(pool, 0)
        index.hung = True
        await problem(pool, 1)
        index.rsbcm.placer.loads._drivers.clear()
        index.hung = False
        await asyncio.sleep(10.0)
        before = index.waves
        await problem(pool, 2)
        assert index.waves == before + 8
        assert sorted(index.rsbcm.placer.loads.names(pool._assigner.driver)) == ["e0", "e1"]
        pool.check_integrity()

    run(main)


# -- a driver that says nothing is forgotten -----------------------------------------------------------------------
def test_a_driver_whose_calls_are_long_keeps_its_pins_and_what_it_has_outstanding():
    async def main(clock):
        index = HungIndex(clock)
        pool = pool_with(index, clock)
        for engine in pool.engines.values():
            engine.delays = [200.0]
        call = asyncio.ensure_future(pool.expand([order("t", "r", (prompt("t", 400),), 4, 8, i) for i in range(4)]))
        for _ in range(18):
            await asyncio.sleep(10.0)
            index.rsbcm.claims.expire()
            assert index.rsbcm.claims.stats()["pins"] == sum(map(len, pool._pins.trees.values())) == 1
            assert index.rsbcm.placer.loads.drivers() == 1
            assert sum(standing.rows for standing in index.rsbcm.placer.loads.actors.values()) == 16
        await call

    run(main)


def test_a_driver_without_anything_outstanding_is_silent():
    async def main(clock):
        index = HungIndex(clock)
        pool = pool_with(index, clock)
        await problem(pool, 0)
        await asyncio.sleep(15.0)
        before = len(index.reports)
        await asyncio.sleep(1000.0)
        assert len(index.reports) == before

    run(main)


def test_a_pool_that_is_closed_says_nothing_more():
    async def main(clock):
        index = HungIndex(clock)
        pool = pool_with(index, clock)
        await pool.expand([order("t", "r", (prompt("t", 400),), 4, 8)])
        await asyncio.sleep(25.0)
        assert index.reports
        pool.close()
        before = len(index.reports)
        await asyncio.sleep(100.0)
        assert len(index.reports) == before

    run(main)
