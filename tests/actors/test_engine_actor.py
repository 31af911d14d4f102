"""Engine actor: repeated calls are answered from memory, and the index follows what the engine holds."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from actors.engine_actor import EngineActor
from actors.handles import InlineEngine
from actors.messages import Reply, unpack
from actors.rsbcm import RSBCM, Scored
from engine.base import BranchRequest, StepRule, path_keys
from engine.scripted import ScriptedEngine
from engine.simulated import SimulatedEngine
from search.types import Boundary, Expansion, Sampling


def order(number, text=b"prompt"):
    return Expansion(f"o{number}", "p", "r", (tuple(str(number).encode() + text),), 2, Sampling())


class Wire:
    """Between an engine actor and the index; drops batches on demand."""

    def __init__(self):
        self.rsbcm = RSBCM()
        self.lost = 0
        self.batches = []

    def publish(self, data):
        self.batches.append(unpack(data))
        if self.lost:
            self.lost -= 1
            raise ConnectionError("index is gone")
        return self.rsbcm.apply(data)

    def agrees(self, actor):
        self.rsbcm.check_integrity()
        holder = self.rsbcm.index.live(actor.name)
        return holder.keys == {event.key: (event.parent, event.end) for event in actor.engine.snapshot()}


@pytest.fixture
def wire():
    return Wire()


@pytest.fixture
def actor(wire):
    return EngineActor("a", lambda: ScriptedEngine(["one\n\n", "two\n\n", "three\n\n"]), wire.publish)


def test_the_index_follows_the_engine(wire, actor):
    for number in range(4):
        actor.expand([order(number)], "t")
        assert wire.agrees(actor)
    actor.release([path_keys("factory", order(2).context)[0]])
    assert wire.agrees(actor)
    assert wire.rsbcm.index.stats()["entries"] > 0


def test_a_batch_without_an_answer_is_sent_again(wire, actor):
    actor.expand([order(0)], "t")
    wire.lost = 2
    actor.expand([order(1)], "t")
    actor.expand([order(2)], "t")
    assert not wire.agrees(actor)
    actor.expand([order(3)], "t")
    assert wire.agrees(actor)
    assert [b.seq for b in wire.batches] == [0, 1, 1, 1, 2]
    assert actor.stats()["events_lost"] == 2


def test_an_index_that_asks_without_end_gets_one_snapshot_a_call(wire, actor):
    wire.rsbcm.index.apply = lambda batch: "resync"
    actor.expand([order(0)], "t")
    assert [batch.snapshot for batch in wire.batches] == [False, True]


def test_a_new_index_rebuilds_from_a_snapshot_whenever_it_is_new(wire, actor):
    for number in range(3):
        actor.expand([order(number)], "t")
        assert wire.agrees(actor)
        wire.rsbcm = RSBCM()


def test_a_restarted_engine_replaces_what_its_predecessor_held(wire, actor):
    actor.expand([order(0)], "t")
    again = EngineActor("a", lambda: ScriptedEngine(["x\n\n"]), wire.publish)
    assert again.incarnation > actor.incarnation
    again.expand([order(5)], "t")
    assert wire.agrees(again)
    actor.expand([order(6)], "t")
    assert wire.agrees(again)


def test_a_repeated_order_is_answered_from_memory(actor):
    first = actor.expand([order(0), order(1)], "t")
    assert actor.expand([order(1), order(0)], "t") == first[::-1]
    assert actor.engine.counts["expansions"] == 2
    both = actor.expand([order(1), order(2)], "t")
    assert both[0] == first[1] and actor.engine.counts["expansions"] == 3
    actor.expand([order(0)], "another dispatch")
    assert actor.engine.counts["expansions"] == 4


def test_calls_from_many_threads_are_served_one_by_one_and_the_index_still_agrees(wire, actor, monkeypatch):
    """An engine that is not `concurrent` sees no second call, nor a look at its books, while one runs."""
    inside, overlaps = [], []

    def alone(name):
        inner = getattr(actor.engine, name)

        def call(*args):
            overlaps.extend(inside)
            inside.append(name)
            time.sleep(0.0005)
            found = inner(*args)
            inside.remove(name)
            return found

        setattr(actor.engine, name, call)

    for name in ("expand", "events", "snapshot", "release"):
        alone(name)
    remember = actor._remember
    monkeypatch.setattr(actor, "_remember", lambda *args: (remember(*args), time.sleep(0.0002)))
    wire.lost = 3
    with ThreadPoolExecutor(8) as threads:
        for found in threads.map(lambda number: actor.expand([order(number)], "t"), range(40)):
            assert found[0].error is None
    actor.expand([order(99)], "t")
    assert overlaps == []
    assert wire.agrees(actor)
    assert sorted({batch.seq for batch in wire.batches}) == list(range(wire.batches[-1].seq + 1))


def test_memory_is_bounded(actor):
    for number in range(1100):
        actor.expand([order(number, b"p")], "t")
    assert len(actor._done) == 1024
    actor.engine.tree.check_integrity()


def test_samples_keep_their_index_and_stream(actor):
    later = Expansion("o9", "p", "r", ((1, 2),), 2, Sampling(), first_sample=5)
    assert [sample.index for sample in actor.expand([later], "t")[0].samples] == [5, 6]


def test_an_engine_error_remembers_nothing(wire):
    replies = iter([RuntimeError("out of memory")])

    def script(path, served):
        if (error := next(replies, None)) is not None:
            raise error
        return "fine\n\n"

    actor = EngineActor("a", lambda: ScriptedEngine(script), wire.publish)
    with pytest.raises(RuntimeError, match="out of memory"):
        actor.expand([order(0)], "t")
    assert actor.expand([order(0)], "t")[0].samples[0].text == "fine\n\n"


def test_a_rule_that_raises_fails_its_own_order_alone():
    def broken(text):
        raise KeyError(text)

    bad = replace(order(1), sampling=Sampling(boundary=Boundary(fn=broken)))
    actor = EngineActor("a", lambda: ScriptedEngine(["fine\n\n"]))
    good, failed = actor.expand([order(0), bad], "t")
    assert good.samples[0].text == "fine\n\n" and good.error is None
    assert "the rule of where a step ends raised KeyError" in failed.error


def test_step_rules_reach_the_engine():
    rule = StepRule(max_tokens=4, delimiter=None)
    result = ScriptedEngine(["abcdefgh"]).expand([BranchRequest("b", ((1, 2),), (0,), rule)])[0]
    assert (result.branches[0].text, result.branches[0].finish) == ("abcd", "length")


# -- eviction proposals --------------------------------------------------------------------------------------------
def small(tokens):
    """An engine with room for so many tokens that evicts by omega."""
    return ScriptedEngine(["abcdefghij\n\n"], kv_budget_bytes=tokens, bytes_per_token=1, eviction="omega")


def test_above_its_high_water_mark_an_engine_drops_what_the_index_proposes(wire):
    actor = EngineActor("a", lambda: small(200), wire.publish)
    for number in range(8):
        actor.expand([order(number, b" is a prompt")], "t")
        key = path_keys("factory", order(number, b" is a prompt").context)[0]
        wire.rsbcm.note_scores([Scored(key, number / 8, 0)])
    assert wire.rsbcm.stats()["proposed"] > 0 and wire.rsbcm.stats()["refused"] == 0
    assert actor.engine.tree.device.nbytes <= 180
    assert wire.agrees(actor)
    actor.engine.tree.check_integrity()


def test_a_proposal_for_a_running_path_is_refused_and_the_index_hears_of_it(wire):
    actor = EngineActor("a", lambda: small(1000), wire.publish)
    actor.expand([order(0, b" is a prompt")], "t")
    reader = next(actor.engine.tree.segments())
    actor.engine.tree.pin(reader)
    actor._publisher._publish = lambda data: Reply(wire.publish(data).ack, (reader.key,))
    actor.expand([order(1, b" is a prompt")], "t")
    actor.expand([order(2, b" is a prompt")], "t")
    assert wire.rsbcm.stats()["refused"] == 1 and actor.engine.tree.find(reader.key) is reader
    actor.engine.tree.unpin(reader)


def test_an_engine_that_fails_to_evict_fails_no_call(wire, actor):
    actor.engine.evict = lambda keys: 1 / 0
    actor._publisher._publish = lambda data: Reply("ok", (bytes(16),))
    assert actor.expand([order(0)], "t")[0].error is None


# -- a thread of its own that tells the index ----------------------------------------------------------------------
class SlowWire(Wire):
    """Answers when it is let."""

    def __init__(self):
        super().__init__()
        self.open = threading.Event()

    def publish(self, data):
        assert self.open.wait(60)
        return super().publish(data)


def eventually(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def slow():
    return SlowWire()


@pytest.fixture
def background(slow):
    actor = EngineActor("a", lambda: ScriptedEngine(["one\n\n", "two\n\n"]), slow.publish, background=True)
    yield actor
    slow.open.set()
    actor.close()


def test_no_call_waits_for_the_index(slow, background):
    for number in range(5):
        assert background.expand([order(number)], "t")[0].error is None
    background.release([path_keys("factory", order(2).context)[0]])
    assert slow.batches == []
    slow.open.set()
    eventually(lambda: slow.batches and slow.agrees(background))
    assert len(slow.batches) <= 3


def test_an_idle_engine_rebuilds_a_new_index_by_itself(slow, background):
    slow.open.set()
    background.expand([order(0)], "t")
    eventually(lambda: slow.batches and slow.agrees(background))
    slow.rsbcm = RSBCM()
    eventually(lambda: slow.rsbcm.index.live("a") is not None and slow.agrees(background))
    slow.rsbcm.forget("a")
    eventually(lambda: slow.rsbcm.index.live("a") is not None and slow.agrees(background))


def test_a_busy_engine_follows_a_proposal_after_its_call_and_an_idle_one_at_once(slow, background):
    slow.open.set()
    asked = []
    evicted = threading.Event()

    def evict(keys):
        assert not inside
        asked.extend(keys)
        evicted.set()
        return []

    inside = []
    background.engine.evict = evict
    background._publisher._publish = lambda data: Reply("ok", (bytes(16),) if not asked else ())
    assert evicted.wait(60)
    asked.clear()
    evicted.clear()
    expand = background.engine.expand

    def long(requests):
        inside.append(1)
        time.sleep(1.5)
        assert not evicted.is_set()
        inside.pop()
        return expand(requests)

    background.engine.expand = long
    background.expand([order(0)], "t")
    assert evicted.wait(60)


def test_an_inline_engine_releases_beside_its_calls_without_holding_up_the_loop():
    began, goes_on = threading.Event(), threading.Event()

    class Slow(SimulatedEngine):
        def expand(self, requests):
            began.set()
            assert goes_on.wait(60.0)
            return super().expand(requests)

    async def run():
        engine = InlineEngine("a", Slow)
        await engine.release([b"nothing was built yet"])
        assert engine._actor is None
        call = asyncio.ensure_future(engine.expand([order(1)], "token"))
        await asyncio.to_thread(began.wait)
        release = asyncio.ensure_future(engine.release([b"unknown"]))
        await asyncio.sleep(0)
        assert not release.done()
        goes_on.set()
        await asyncio.gather(call, release)

    asyncio.run(run())
