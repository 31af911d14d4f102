"""KV between engines of one process: what moves, what it is measured to cost, and what happens when it fails."""

import asyncio
import threading

import pytest

from actors.engine_actor import EngineActor
from actors.handles import EngineDownError, EngineFailedError, EngineHandle, InlineEngine
from actors.rsbcm import RSBCM
from actors.transfer import InlineTransport, LinkSpeed, Mover
from engine.base import path_keys
from engine.scripted import ScriptedEngine
from engine.simulated import SimulatedEngine
from engine.text_engine import Latency
from search.types import Expansion, Sampling

PATH = (tuple(range(65, 97)),)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Canned:
    """Moves take `took_s` on the clock and end with `held` tokens, or with an exception."""

    def __init__(self, clock: Clock, took_s: float, held: int | Exception) -> None:
        self.clock, self.took_s, self.held, self.calls = clock, took_s, held, 0

    async def move(self, source: EngineHandle, target: EngineHandle, key: bytes, start: int) -> int:
        self.calls += 1
        self.clock.now_s += self.took_s
        if isinstance(self.held, Exception):
            raise self.held
        return self.held


def engines() -> tuple[InlineEngine, InlineEngine, RSBCM]:
    index = RSBCM()
    a, b = (InlineEngine(name, SimulatedEngine, index) for name in "ab")
    return a, b, index


def order(path: tuple[tuple[int, ...], ...] = PATH) -> Expansion:
    return Expansion("e", "p", "n", path, 2, Sampling(max_tokens=16))


def bring(mover: Mover, start: int = 0, end: int = 1000) -> bool:
    a, b, _ = engines()
    return asyncio.run(mover.bring(a, b, b"key", start, end, 10.0))


def test_what_one_engine_grew_another_need_not_prefill():
    a, b, index = engines()

    async def run() -> tuple[bool, int, int]:
        sample = (await a.expand([order()], "t"))[0].samples[0]
        child = (*PATH, sample.token_ids)
        key, end = path_keys("simulated", child)[-1], sum(map(len, child)) - 1
        mover = Mover(InlineTransport(), 1e6)
        came = await mover.bring(a, b, key, 0, end, 10.0)
        prefilled = (await b.expand([order(child)], "t"))[0].cost.prefilled
        assert mover.counts.tokens == end
        return came, prefilled, index.index.held("b", [key], [end])

    came, prefilled, indexed = asyncio.run(run())
    assert came
    assert prefilled == 0
    assert indexed > 0


def test_kv_leaves_and_reaches_an_engine_whose_call_is_under_way():
    inside, go = threading.Event(), threading.Event()

    def sleep(seconds: float) -> None:
        inside.set()
        assert go.wait(30)

    busy = EngineActor("a", lambda: SimulatedEngine(latency=Latency(per_call_s=0.1), sleep=sleep))
    other = EngineActor("b", SimulatedEngine)
    call = threading.Thread(target=lambda: busy.expand([order()], "t"))
    call.start()
    try:
        assert inside.wait(30)
        key = path_keys("simulated", PATH)[-1]
        length = sum(map(len, PATH)) - 1
        assert other.import_kv(busy.export_kv(key)) == length
        longer = (*PATH[:-1], (*PATH[-1], 7, 8, 9))
        sample = other.expand([order(longer)], "t")[0]
        assert sample.cost.actual_hit >= length - 1
        assert busy.import_kv(other.export_kv(path_keys("simulated", longer)[-1])) == length + 3
        assert call.is_alive()
    finally:
        go.set()
        call.join(30)


def test_kv_that_is_not_there_is_prefilled_as_ever():
    a, b, _ = engines()

    async def run() -> tuple[bool, bool, int]:
        mover = Mover(InlineTransport(), 1e6)
        came = await mover.bring(a, b, b"unknown", 0, 31, 10.0)
        return came, mover.usable, (await b.expand([order()], "t"))[0].cost.prefilled

    assert asyncio.run(run()) == (False, False, len(PATH[0]) - 1)


def test_engines_that_cannot_send_fail_the_move_only():
    a = InlineEngine("a", lambda: ScriptedEngine(lambda path, stream: "x"))

    class Plain:
        concurrent = False

    b = InlineEngine("b", Plain)  # type: ignore[arg-type]
    mover = Mover(InlineTransport(), 1e6)
    assert not asyncio.run(mover.bring(b, a, b"key", 0, 31, 10.0))
    assert mover.counts.failures == 1


def test_a_pool_without_a_transport_moves_nothing():
    assert not Mover(None, 1e6).usable
    assert not bring(Mover(None, 1e6))


@pytest.mark.parametrize("error", [EngineDownError("gone"), EngineFailedError("no")])
def test_after_a_failure_moves_pause(error: Exception):
    clock = Clock()
    transport = Canned(clock, 1.0, error)
    mover = Mover(transport, 1e6, clock, pause_s=30.0)
    assert not bring(mover)
    assert not bring(mover)
    assert (transport.calls, mover.counts.failures) == (1, 1)
    clock.now_s += 30.0
    transport.held = 1000
    assert bring(mover)
    assert transport.calls == 2


def test_a_move_that_hangs_is_given_up():
    class Hanging:
        async def move(self, source: EngineHandle, target: EngineHandle, key: bytes, start: int) -> int:
            await asyncio.Event().wait()
            return 0

    a, b, _ = engines()
    mover = Mover(Hanging(), 1e6)
    assert not asyncio.run(mover.bring(a, b, b"key", 0, 1000, 0.01))
    assert mover.counts.failures == 1


def test_kv_that_found_no_room_is_no_hit_and_no_failure():
    clock = Clock()
    mover = Mover(Canned(clock, 1.0, 40), 1e6, clock)
    assert not bring(mover, start=20, end=1000)
    assert (mover.counts.tokens, mover.counts.failures, mover.usable) == (20, 0, True)
    assert mover.speed.tokens_per_s == 1e6


def test_the_speed_of_the_link_is_learned_and_gives_the_break_even():
    speed = LinkSpeed(tokens_per_s=1e6, latency_s=0.0)
    for _ in range(40):
        speed.learn(8, 0.02)
        speed.learn(4096, 0.02 + 4096 / 5000)
    assert speed.latency_s == pytest.approx(0.02, rel=0.1)
    assert speed.tokens_per_s == pytest.approx(5000, rel=0.1)
    tokens = speed.link.break_even(prefill_rate=1000.0)
    assert speed.link.seconds(round(tokens)) == pytest.approx(tokens / 1000.0, rel=0.05)
    assert speed.link.break_even(prefill_rate=10_000.0) == float("inf")


def test_the_first_move_replaces_what_was_assumed_and_slow_ones_weigh_by_their_time():
    speed = LinkSpeed(tokens_per_s=1e6, latency_s=0.0)
    speed.learn(1000, 0.01)
    assert speed.tokens_per_s == pytest.approx(1e5)
    for _ in range(3):
        speed.learn(1000, 1.0)
    assert speed.link.seconds(1000) > 0.5


def test_a_link_that_was_slow_once_is_tried_again():
    clock = Clock()
    mover = Mover(Canned(clock, 2.0, 1000), 1e5, clock)
    assert bring(mover)
    assert not mover.link.pays(1000, prefill_rate=1000.0)
    clock.now_s += 59.0
    assert not mover.link.pays(1000, prefill_rate=1000.0)
    clock.now_s += 2.0
    assert mover.link.pays(1000, prefill_rate=1000.0)
    assert bring(mover) and not mover.link.pays(1000, prefill_rate=1000.0)


def test_a_move_that_was_given_up_shows_how_slow_the_link_is():
    class Slow:
        async def move(self, source: EngineHandle, target: EngineHandle, key: bytes, start: int) -> int:
            await asyncio.sleep(60.0)
            return 1000

    a, b, _ = engines()
    mover = Mover(Slow(), 1e6, pause_s=0.0)
    assert mover.link.pays(1000, prefill_rate=10_000.0)
    assert not asyncio.run(mover.bring(a, b, b"key", 0, 1000, 0.1))
    assert not mover.link.pays(1000, prefill_rate=10_000.0)
