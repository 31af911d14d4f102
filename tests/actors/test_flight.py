"""Orders that fly alone: outcomes as they come, calling them back, and failures on the way."""

import asyncio
from pathlib import Path

import pytest

from actors.dispatcher import Dispatcher, PoolOptions
from actors.engine_actor import EngineActor, request_id
from actors.handles import EngineFailedError, InlineEngine, InlineIndex
from actors.rsbcm import RSBCM
from engine.scripted import ScriptedEngine
from engine.simulated import SimulatedEngine
from engine.tokenizer import ByteCodec
from search.types import Boundary, Expansion, Sampling
from tests.actors.shaky import QUICK, orders, pool_of, shaky


async def collect(flight, at_first=()):
    """All outcomes by id; once the first is there, `at_first` is cancelled."""
    found = {}
    async for outcome in flight:
        if not found:
            flight.cancel(at_first)
        found[outcome.expansion_id] = outcome
    return found


def fly(pool, wave, at_first=()):
    return asyncio.run(collect(pool.launch(wave), at_first))


def test_a_flight_gives_what_a_wave_gives():
    wave = orders(6)
    together = asyncio.run(pool_of(shaky(), shaky()).expand(wave))
    alone = fly(pool_of(shaky(), shaky()), wave)
    assert {o.expansion_id: [s.text for s in o.samples] for o in together} == {
        id: [s.text for s in outcome.samples] for id, outcome in alone.items()
    }


def test_a_failed_order_is_tried_again_and_then_an_outcome_with_an_error():
    wave = orders(3)
    once = fly(pool_of(shaky(faults=[EngineFailedError("once")])), wave)
    assert len(once) == 3 and all(outcome.error is None for outcome in once.values())
    always = fly(pool_of(shaky(poison="o")), wave)
    assert {outcome.error for outcome in always.values()} == {"RuntimeError: poisoned"}
    assert set(always) == {order.id for order in wave}


def test_leaving_a_flight_early_leaves_no_task_behind():
    async def leave():
        pool = pool_of(shaky())
        async for _ in pool.launch(orders(4)):
            break
        await asyncio.sleep(0.05)
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    assert asyncio.run(leave()) == []


def test_a_recalled_order_that_comes_late_never_starts():
    engine = ScriptedEngine(["Answer: 5"])
    actor = EngineActor("engine-0", lambda: engine)
    first, second = orders(2)
    actor.cancel([request_id("wave-1", first.id)])
    outcomes = actor.expand([first, second], "wave-1")
    assert [len(outcome.samples) for outcome in outcomes] == [0, second.n]
    assert engine.counts["expansions"] == 1
    assert len(actor.expand([first], "wave-2")[0].samples) == first.n


def test_two_waves_with_equal_order_ids_are_told_apart():
    """Two searches of one problem: calling one's orders back does not touch the other's."""
    seen = []

    class Listening(SimulatedEngine):
        def expand(self, requests):
            seen.extend(request.id for request in requests)
            return super().expand(requests)

    actor = EngineActor("engine-0", Listening)
    (order,) = orders(1)
    actor.expand([order], "a")
    actor.expand([order], "b")
    assert seen == [f"a/{order.id}", f"b/{order.id}"]


def test_case_29_a_local_engine_stops_in_the_middle(tmp_path: Path):
    """Two rows run at a time; the rest of the wave is called back while they run or wait."""
    pytest.importorskip("torch")
    from engine.local import LocalEngine
    from tests.tiny import save_tiny_llama

    engine = LocalEngine.load(str(save_tiny_llama(tmp_path)), dtype="float32", device="cpu", max_rows=2)
    handle = InlineEngine("engine-0", lambda: engine)
    pool = Dispatcher([handle], InlineIndex(RSBCM()), engine.codec, "tiny", engine.capabilities, PoolOptions())
    context = (tuple(engine.codec.encode("A prompt")),)
    limits = [8, *[400] * 7]
    wave = [
        Expansion(f"p/r/{i}", "p", "r", context, 1, Sampling(max_tokens=n, boundary=Boundary.none()), first_sample=i)
        for i, n in enumerate(limits)
    ]
    found = fly(pool, wave, at_first=[order.id for order in wave])
    assert set(found) == {order.id for order in wave}
    generated = [sum(len(sample.token_ids) for sample in found[order.id].samples) for order in wave]
    assert sum(generated) < 4 * 400
    finishes = [sample.finish for outcome in found.values() for sample in outcome.samples]
    assert "cancelled" in finishes
    engine.check_integrity()


def test_the_codec_of_a_pool_makes_follow_ups_without_a_second_end_of_turn():
    pool = Dispatcher(
        [InlineEngine("engine-0", SimulatedEngine)], InlineIndex(RSBCM()), ByteCodec(), "simulated", frozenset(), QUICK
    )
    turn = pool.follow_up(((65, 66),), "Again?")
    assert bytes(turn).decode() == "\n<user>Again?\n<assistant>"
    assert pool.tokens("AB") == (65, 66)
