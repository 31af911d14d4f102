"""Dispatcher: every order has its outcome, whatever engines do; prompts that kill fail alone."""

import asyncio
import gc
import warnings
from dataclasses import replace

import pytest

from actors.dispatcher import PoolOptions
from actors.handles import EngineDownError, EngineFailedError, InlineEngine
from engine.scripted import ScriptedEngine
from engine.simulated import SimulatedEngine
from engine.tokenizer import ByteCodec
from search.types import Expansion, Sampling
from tests.actors.shaky import DOWN, IMPATIENT, Shaky, orders, pool_of, request, shaky, texts, undisturbed


def test_outcomes_come_in_the_order_of_the_wave_with_predictions():
    wave = orders(6)
    pool = pool_of(shaky("a"), shaky("b"))
    found = asyncio.run(pool.expand(wave))
    assert [outcome.expansion_id for outcome in found] == [order.id for order in wave]
    assert {outcome.engine for outcome in found} == {"a", "b"}
    assert texts(found) == undisturbed(wave)
    assert all(load.rows == load.prefill_tokens == 0 for load in pool.fleet.loads.values())
    again = [Expansion(f"x{o.id}", "p", o.node_id, o.context, 1, Sampling(), first_sample=9) for o in wave]
    for outcome in asyncio.run(pool.expand(again)):
        assert outcome.cost.predicted_hit in (outcome.cost.actual_hit, 0)


def test_a_prompt_begins_with_what_the_codec_begins_chats_with():
    class Begun(ByteCodec):
        def begin(self, messages):
            return [300, *self.encode(self.render(messages))]

    pool, messages = pool_of(shaky("a")), [{"role": "user", "content": "What?"}]
    plain = pool.encode(messages)
    pool.codec = Begun()
    assert pool.encode(messages) == (300, *plain)


def test_calls_that_nobody_waits_for_end_with_the_pool_without_a_word():
    async def run():
        pool, wave = pool_of(shaky("a")), orders(2)
        await pool.expand(wave)
        await pool.release([order.context for order in wave])
        pool.fleet.tell(pool.engines["a"].release([b"k"]))
        pool.close()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(run())
        gc.collect()
    assert [str(one.message) for one in caught if "never awaited" in str(one.message)] == []


def test_a_call_that_nobody_waits_for_tells_of_what_it_lost():
    failures = []

    async def run():
        pool = pool_of(shaky("a"))
        pool.fleet.on_failure = lambda who, why: failures.append((who, why))

        async def lost():
            raise EngineDownError("gone")

        pool.fleet.tell(lost())
        await asyncio.sleep(0.01)

    asyncio.run(run())
    assert failures == [("pool", "gone")]


def test_an_engine_that_dies_once_loses_nothing_and_comes_back():
    wave = orders(6)
    expected = undisturbed(wave)

    async def run():
        a, b, failures = shaky("a", faults=[DOWN]), shaky("b"), []
        pool = pool_of(a, b, failures=failures)
        found = await pool.expand(wave)
        assert texts(found) == expected
        assert "b" in {outcome.engine for outcome in found}
        assert all(outcome.error is None for outcome in found)
        await asyncio.sleep(0)
        assert pool.fleet.up() == ["a", "b"] and a.readies == 1
        assert failures == [("a", "the actor died")]
        assert {outcome.engine for outcome in await pool.expand(orders(6, tag="later"))} == {"a", "b"}

    asyncio.run(run())


def test_a_poison_order_fails_alone_after_bounded_attempts():
    a, b = shaky("a", poison="o2"), shaky("b", poison="o2")
    wave = orders(6)
    found = asyncio.run(pool_of(a, b).expand(wave))
    assert [outcome.error for outcome in found] == [None, None, "RuntimeError: poisoned", None, None, None]
    assert [t for i, t in enumerate(texts(found)) if i != 2] == [t for i, t in enumerate(undisturbed(wave)) if i != 2]
    tries = [call for call in a.calls + b.calls if "o2" in call]
    assert len(tries) == 3 and ["o2"] in a.calls and ["o2"] in b.calls
    assert len(a.calls) + len(b.calls) <= 2 + 3 + 2


def test_an_order_that_kills_engines_fails_alone():
    class Fragile(Shaky):
        async def expand(self, given, token):
            if any(order.id == "o1" for order in given):
                self.calls.append("died")
                raise EngineDownError("the actor died")
            return await super().expand(given, token)

    engines = [Fragile(name, SimulatedEngine) for name in "ab"]
    wave = orders(4)
    found = asyncio.run(pool_of(*engines).expand(wave))
    assert [outcome.error for outcome in found] == [None, "the actor died", None, None]
    assert sum(engine.calls.count("died") for engine in engines) == 3


def test_an_engine_that_always_raises_is_tried_a_bounded_number_of_times():
    a, failures = shaky(faults=[EngineFailedError("RuntimeError: no")] * 99), []
    found = asyncio.run(pool_of(a, failures=failures).expand(orders(3)))
    assert [outcome.error for outcome in found] == ["RuntimeError: no"] * 3
    assert len(a.calls) == len(failures) == 1 + 3 * 2


def test_a_broken_engine_beside_a_good_one_costs_no_order():
    a, b = shaky("a", faults=[EngineFailedError("RuntimeError: no")] * 99), shaky("b")
    wave = orders(6)
    assert texts(asyncio.run(pool_of(a, b).expand(wave))) == undisturbed(wave)


@pytest.mark.parametrize("fault", [DOWN, EngineFailedError("RuntimeError: no")])
def test_each_outcome_is_kept_once_when_it_lands_and_not_when_the_wave_is_whole(fault):
    wave, free = orders(6), asyncio.Event()

    class Held(Shaky):
        async def expand(self, given, token):
            if self.calls:
                await free.wait()
            return await super().expand(given, token)

    async def run():
        kept = []
        growing = asyncio.create_task(
            pool_of(Held("a", SimulatedEngine, faults=[fault]), shaky("b")).expand(wave, kept.append)
        )
        while not kept and not growing.done():
            await asyncio.sleep(0)
        early = len(kept)
        assert not growing.done() and early < len(wave)
        free.set()
        found = await growing
        assert sorted(o.expansion_id for o in kept) == [o.expansion_id for o in found]
        assert {o.expansion_id: o for o in kept} == {o.expansion_id: o for o in found}

    asyncio.run(run())


# -- scores --------------------------------------------------------------------------------------------------------
def test_scores_go_to_the_engine_that_grew_the_branch():
    a, b = shaky("a"), shaky("b")
    found = asyncio.run(pool_of(a, b).score([request(i, "ab"[i % 2]) for i in range(4)]))
    assert [score.engine for score in found] == ["a", "b", "a", "b"]
    assert a.calls == [["s0", "s2"]] and b.calls == [["s1", "s3"]]


@pytest.mark.parametrize("fault", [DOWN, EngineFailedError("RuntimeError: no"), "hang"])
def test_scores_of_an_engine_that_fails_come_from_another(fault):
    a, b = shaky("a", faults=[fault] * 2), shaky("b")
    wanted = [request(i) for i in range(3)]
    found = asyncio.run(pool_of(a, b, options=IMPATIENT).score(wanted))
    assert [score.engine for score in found] == ["b"] * 3
    assert [s.p_yes for s in found] == [s.p_yes for s in asyncio.run(pool_of(shaky()).score(wanted))]


def test_an_engine_that_returns_too_few_scores_fails_and_others_give_them():
    async def main():
        a, b, failures = shaky("a"), shaky("b"), []
        pool = pool_of(a, b, failures=failures)
        good = a.actor.engine.score
        a.actor.engine.score = lambda queries: good(queries)[:-1]
        scores = await pool.score([request(i) for i in range(3)])
        assert [(score.id, score.error, score.engine) for score in scores] == [(f"s{i}", None, "b") for i in range(3)]
        assert [(who, why.partition(":")[0]) for who, why in failures] == [("a", "ValueError")]

    asyncio.run(main())


def test_a_poison_question_fails_alone():
    a = shaky(poison="s1")
    found = asyncio.run(pool_of(a).score([request(i) for i in range(4)]))
    assert [score.error for score in found] == [None, "RuntimeError: poisoned", None, None]
    assert [score.p_yes is None for score in found] == [False, True, False, False]
    assert sum("s1" in call for call in a.calls) == 3


# -- releasing -----------------------------------------------------------------------------------------------------
def test_release_frees_the_branch_on_every_engine_that_is_up():
    async def run():
        a, b = shaky("a"), shaky("b")
        pool = pool_of(a, b)
        wave = orders(6)
        await pool.expand(wave)
        assert all(engine.actor.engine.tree.num_tokens for engine in (a, b))
        await pool.finish("p", [order.context for order in wave])
        for engine in (a, b):
            assert engine.actor.engine.tree.num_tokens <= len(b"a common prompt") + len(b"step ")
        assert pool.index.rsbcm.stats()["trees"] == 0

    asyncio.run(run())


@pytest.mark.parametrize("long", ["x" * 257, "\ud800" * 300])
def test_a_problem_id_of_any_length_names_a_tree_at_the_index(long):
    async def run():
        pool = pool_of(shaky("a"))
        wave = [replace(order, problem_id=problem) for order in orders(2) for problem in ("short", long)]
        await pool.expand(wave)
        stats = pool.index.rsbcm.stats()
        assert stats["pins"] == sum(map(len, pool._pins.trees.values())) == 6 and stats["trees"] == 2
        for problem in ("short", long):
            await pool.finish(problem, [order.context for order in wave])
        stats = pool.index.rsbcm.stats()
        assert stats["pins"] == stats["trees"] == stats["bad_messages"] == 0

    asyncio.run(run())


def test_release_waits_for_no_engine_that_is_busy():
    freed, free = [], asyncio.Event()

    class Busy(Shaky):
        async def release(self, keys):
            await free.wait()
            freed.append(keys)

    class Gone(Shaky):
        async def release(self, keys):
            raise EngineDownError("gone")

    async def run():
        pool = pool_of(Busy("a", SimulatedEngine), Gone("b", SimulatedEngine))
        await pool.release([(tuple(b"prompt"),)])
        assert freed == []
        free.set()
        while not freed:
            await asyncio.sleep(0)
        free.clear()
        await pool.release([(tuple(b"prompt"),)])
        pool.close()
        await asyncio.sleep(0)

    asyncio.run(run())
    assert len(freed) == 1


async def finished(engine):
    """A pool of this engine, which has solved one problem."""
    pool, wave = pool_of(engine), orders(3)
    await pool.expand(wave)
    await pool.finish("p", [order.context for order in wave])
    return pool


def test_a_release_that_is_lost_is_sent_again():
    """The engine lives, and holds what it was not told of."""

    class Lossy(Shaky):
        lost = 1

        async def release(self, keys):
            if self.lost:
                self.lost -= 1
                raise EngineDownError("connection reset")
            await super().release(keys)

    async def run():
        engine = Lossy("a", SimulatedEngine)
        pool = await finished(engine)
        assert engine.actor.engine.tree.num_tokens
        assert await pool.fleet.some_up(10.0) and not await asyncio.sleep(0.01)
        assert engine.actor.engine.tree.num_tokens <= len(b"a common prompt") + len(b"step ") and not pool._missed
        pool.close()

    asyncio.run(run())


def test_a_release_that_failed_in_an_earlier_life_of_its_engine_does_not_end_this_one():
    died, lost = asyncio.Event(), []

    class Late(Shaky):
        async def release(self, keys):
            if not lost:
                lost.append(keys)
                await died.wait()
                raise EngineDownError("the actor died")
            await super().release(keys)

    async def run():
        engine = Late("a", SimulatedEngine)
        pool = await finished(engine)
        pool.fleet.mark_down("a", "it died")
        assert await pool.fleet.some_up(10.0)
        died.set()
        await asyncio.sleep(0.01)
        assert pool.fleet.is_up("a") and pool.fleet.life("a") == 1
        assert engine.actor.engine.tree.num_tokens <= len(b"a common prompt") + len(b"step ")
        pool.close()

    asyncio.run(run())


def test_scores_reach_the_index_and_every_engine_that_is_up_without_waiting():
    async def run():
        a, b = shaky("a"), shaky("b")
        pool = pool_of(a, b)
        wave = orders(6)
        await pool.expand(wave)
        context = wave[0].context
        await pool.note_scores([(context, 0.6, 1)])
        await asyncio.sleep(0)
        key = pool.keys.of(context)[-1]
        assert pool.index.rsbcm.claims.omega(key) == 0.3
        for engine in (a, b):
            assert engine.actor.engine.tree.scores.get(key) == 0.3

        async def gone(items):
            raise EngineDownError("gone")

        a.note_scores = gone
        await pool.note_scores([(context, 1.0, 0)])
        await asyncio.sleep(0)
        assert b.actor.engine.tree.scores.get(key) == 1.0
        await InlineEngine("unbuilt", lambda: 1 / 0).note_scores([(key, 1.0, 0)])

    asyncio.run(run())


# -- the rest ------------------------------------------------------------------------------------------------------
def test_a_pool_needs_an_engine():
    with pytest.raises(ValueError, match="at least one engine"):
        pool_of()


def test_an_inline_engine_reports_its_own_errors():
    def script(path, served):
        raise KeyError("weights")

    handle = InlineEngine("a", lambda: ScriptedEngine(script))
    with pytest.raises(EngineFailedError, match="KeyError: 'weights'"):
        asyncio.run(handle.expand(orders(1), "t"))
    assert asyncio.run(handle.ready()) > 0

    def unbuildable():
        raise OSError("no such file")

    with pytest.raises(EngineFailedError, match="OSError: no such file"):
        asyncio.run(InlineEngine("a", unbuildable).ready())


def test_stats_name_every_engine():
    pool = pool_of(shaky("a"), shaky("b"))
    asyncio.run(pool.expand(orders(2)))
    stats = asyncio.run(pool.stats())
    assert set(stats) == {"a", "b"} and sum(row.get("expansions", 0) for row in stats.values()) == 2


def test_one_searchs_poison_is_no_failure_of_anothers_that_shared_a_call():
    """Even with a single attempt: the shared call counts for none of them."""

    async def both(pool):
        good = [replace(order, problem_id="q") for order in orders(2, tag="good")]
        return await asyncio.gather(pool.expand(orders(2, tag="bad")), pool.expand(good))

    engine = shaky("a", poison="bad")
    bad, good = asyncio.run(both(pool_of(engine, options=PoolOptions(attempts=1, batch_rows=16))))
    assert any({"bad0", "good0"} <= set(call) for call in engine.calls)
    assert [outcome.error for outcome in bad] == ["RuntimeError: poisoned"] * 2
    assert [outcome.error for outcome in good] == [None] * 2
