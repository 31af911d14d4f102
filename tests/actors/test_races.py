"""What happens to an order, a call or an engine while something else about it is being waited for: in virtual time."""

import asyncio
from dataclasses import replace

import pytest

from actors.dispatcher import PoolOptions
from actors.fleet import Fleet
from actors.handles import EngineDownError, EngineFailedError
from search.types import ScoreRequest
from tests.actors.test_order_flow import OPTIONS, measured, wave
from tests.actors.virtual import VirtualEngine, cluster, order, prompt, run

STICKY = replace(OPTIONS, placement="sticky")


def held(pool):
    return {name: engine.actor.engine.tree.num_tokens for name, engine in pool.engines.items()}


def slow_index(pool, seconds):
    ask = pool.index.assign

    async def assign(wave):
        await asyncio.sleep(seconds)
        return await ask(wave)

    pool.index.assign = assign


@pytest.mark.parametrize("how", ["dies", "is drained"])
@pytest.mark.parametrize("concurrent", [True, False])
def test_an_engine_goes_while_the_index_is_asked_where_to_hedge(how, concurrent):
    """Both the hedge and the search for a new place find the only other engine: the order goes there once."""

    async def main(clock):
        pool = cluster(clock, 2, options=OPTIONS, concurrent=concurrent)
        await measured(pool)
        for engine in pool.engines.values():
            engine.delays = [500.0]
        search = asyncio.ensure_future(pool.expand(wave("q", 4)))
        await asyncio.sleep(0.05)
        (victim,) = (name for name, calls in pool.flow._calls.items() if calls)
        for name, engine in pool.engines.items():
            engine.delays = [] if name != victim else engine.delays
        slow_index(pool, 0.5)
        ask, asked = pool.flow.assign, asyncio.Event()

        async def assign(orders):
            asked.set()
            return await ask(orders)

        pool.flow.assign = assign
        await asked.wait()
        await asyncio.sleep(0.1)
        if how == "dies":
            (call,) = pool.flow._calls[victim]
            pool.engines[victim].dead = True
            pool.fleet.mark_down(victim, "the actor died")
            pool.flow._failed(call, "the actor died")
            call.task.cancel()
        else:
            drained = asyncio.ensure_future(pool.drain(victim, 0.0))
        found = await asyncio.wait_for(search, 300.0)
        assert [outcome.error for outcome in found] == [None] * 4
        await asyncio.sleep(30.0)
        if how != "dies":
            await drained
        pool.check_integrity()
        assert all(not load.rows and not load.calls for load in pool.fleet.loads.values())
        assert len(await asyncio.wait_for(pool.expand(wave("later", 6)), 300.0)) == 6

    run(main)


@pytest.mark.parametrize("fetch_s", [0.3, 2.0])
def test_an_engine_that_leaves_ends_calls_that_still_fetch_kv(fetch_s):
    async def main(clock):
        pool = cluster(clock, 2, options=replace(STICKY, rows_per_engine=8), concurrent=True)

        async def fetch(name, orders):
            if orders[0].work.problem_id == "b":
                await asyncio.sleep(fetch_s)

        ask = pool.flow.assign

        async def assign(orders):
            actor = "e0" if pool.fleet.is_up("e0") else "e1"
            return [replace(placed, actor=actor, source="e1", predicted_hit=0) for placed in await ask(orders)]

        pool.flow.fetch, pool.flow.assign = fetch, assign
        a = asyncio.ensure_future(pool.expand(wave("a", 2)))
        await asyncio.sleep(0.05)
        b = asyncio.ensure_future(pool.expand(wave("b", 2)))
        await asyncio.sleep(0.05)
        await pool.drain("e0", 30.0)
        found = await asyncio.gather(a, b)
        assert {outcome.engine for wave in found for outcome in wave} == {"e0"}

    run(main)


def test_the_last_engine_leaves_while_the_index_is_asked():
    async def main(clock):
        pool = cluster(clock, 1, options=replace(OPTIONS, patience_s=5.0))
        slow_index(pool, 0.5)
        search = asyncio.ensure_future(pool.expand(wave("p", 2)))
        await asyncio.sleep(0.1)
        await pool.drain("e0", 0.0)
        assert {outcome.error for outcome in await search} == {"no engine answers"}

    run(main)


def test_a_cancelled_search_leaves_nothing_on_engines_that_relieved_others():
    async def main(clock):
        pool = cluster(clock, 2, options=STICKY)
        pool.flow.options = replace(pool.flow.options, moves=True)
        root, moved = prompt("p", 400), asyncio.Event()
        pool.flow.on_moved = lambda tree, placed: moved.set()
        await asyncio.gather(*(pool.expand(wave(name, 4)) for name in "qs"))
        for name in "qs":
            await pool.finish(name, [(prompt(name, 400),)])

        async def search():
            try:
                await pool.expand([order("p", "r", (root,), 1, 20, i) for i in range(24)])
            finally:
                await pool.finish("p", [(root,)])

        task = asyncio.ensure_future(search())
        await moved.wait()
        await asyncio.sleep(0.01)
        assert sum(map(bool, (pool.flow._calls[name] for name in pool.engines))) == 2
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(60.0)
        pool.check_integrity()
        assert held(pool) == {"e0": 0, "e1": 0}
        assert pool.index.rsbcm.stats()["entries"] == 0

    run(main)


class Asking(VirtualEngine):
    """Scores take a second, and go on when nobody waits for them."""

    async def score(self, requests):
        async def work():
            await asyncio.sleep(1.0)
            return self.actor.score(requests)

        return await asyncio.shield(asyncio.ensure_future(work()))


def test_a_score_that_the_budget_cuts_off_leaves_nothing_behind():
    async def main(clock):
        pool = cluster(clock, 2, options=OPTIONS)
        for engine in pool.engines.values():
            engine.__class__ = Asking
        root = prompt("p", 400)
        (outcome,) = await pool.expand([order("p", "r", (root,), 1, 20, 0)])
        pool.fleet.retire(outcome.engine)  # so that another engine reads the branch to score it
        request = ScoreRequest("s", (root, outcome.samples[0].token_ids), "good?", outcome.engine)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await pool.score([request])
        await pool.finish("p", [(root,)])
        await asyncio.sleep(60.0)
        assert held(pool) == {"e0": 0, "e1": 0}
        assert all(not load.scoring for load in pool.fleet.loads.values())

    run(main)


@pytest.mark.parametrize("broken", [None, "broken"])
def test_who_takes_outcomes_may_raise_and_other_searches_go_on(broken):
    async def main(clock):
        pool = cluster(clock, 1, options=replace(OPTIONS, rows_per_engine=8), concurrent=True)

        async def fails(orders, token):
            raise EngineFailedError(broken)

        if broken:
            pool.engines["e0"].expand = fails

        def keep(outcome):
            raise TypeError("cannot be packed")

        bad, good = pool.expand(wave("a", 3), keep), pool.expand(wave("b", 3))
        found = await asyncio.wait_for(asyncio.gather(bad, good, return_exceptions=True), 300.0)
        assert isinstance(found[0], TypeError)
        assert [outcome.error for outcome in found[1]] == [broken] * 3
        await asyncio.sleep(30.0)
        pool.check_integrity()

    run(main)


@pytest.mark.parametrize("how", ["die", "leave"])
def test_a_recalled_order_is_not_grown_again_when_its_engine_goes(how):
    async def main(clock):
        pool = cluster(clock, 2, options=OPTIONS)
        for engine in pool.engines.values():
            engine.delays = [50.0]
        flight = pool.launch(wave("p", 2))

        async def take():
            return [outcome async for outcome in flight]

        came = asyncio.ensure_future(take())
        await asyncio.sleep(0.1)
        flight.cancel({"p/r/0", "p/r/1"})
        if how == "leave":
            for name in [name for name, calls in pool.flow._calls.items() if calls]:
                await pool.drain(name, 0.0)
        else:
            for engine in pool.engines.values():
                engine.dead = True
            await asyncio.sleep(60.0)
            for engine in pool.engines.values():
                engine.dead = False
        assert [(outcome.samples, outcome.error) for outcome in await came] == [((), None)] * 2
        assert pool.flow.counts["retries"] == 0

    run(main)


class Frozen:
    name, killable, concurrent = "a", True, True

    def __init__(self):
        self.frozen, self.kills = True, 0

    async def stats(self):
        await asyncio.sleep(1e9 if self.frozen else 0)
        return {"steps": 1}

    async def ready(self):
        await asyncio.sleep(1e9 if self.frozen else 0)
        return 1

    async def restart(self):
        self.kills += 1
        self.frozen = self.kills < 2

    async def call(self, seconds):
        await asyncio.sleep(seconds)
        raise EngineDownError("temporarily unavailable")


@pytest.mark.parametrize("lost", [False, True])
def test_an_engine_that_counts_as_down_and_hangs_is_killed_until_it_answers(lost):
    """lost: the reply of another call was lost before, so that it counted as down without having been killed."""

    async def main(clock):
        engine = Frozen()

        async def on_down(name):
            return None

        fleet = Fleet([engine], lambda name, reason: None, on_down, clock=clock)

        async def call(seconds):
            try:
                await fleet.timed("a", engine.call(seconds), 60.0)
            except EngineDownError as error:
                fleet.mark_down("a", str(error))

        await asyncio.gather(call(1e9), call(1.0 if lost else 1e9))
        assert not fleet.is_up("a")
        await asyncio.sleep(3600.0)
        assert fleet.is_up("a") and engine.kills == 2
        fleet.close()

    run(main)


def test_counters_of_a_frozen_engine_are_not_waited_for():
    async def main(clock):
        pool = cluster(clock, 2, options=PoolOptions(rows_per_engine=4))

        async def never():
            await asyncio.sleep(1e9)

        pool.engines["e0"].stats = never
        rows = await asyncio.wait_for(pool.stats(), 60.0)
        assert rows["e0"]["state"] == "down" and "kv_tokens" in rows["e1"]

    run(main)
