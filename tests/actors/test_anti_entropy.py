"""Whatever the channel does and whoever restarts, the index comes to hold what the engines hold."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from actors.block_index import RENEWAL_S
from actors.messages import unpack
from actors.publisher import COALESCE_S, MANY, MOST
from engine.base import KVEvent
from tests.actors.lossy import Channel, World

NAMES = ("a", "b", "c")
NUMBERS = st.lists(st.integers(0, 7), max_size=6)


def key(number):
    return bytes([number]) * 16


class IndexMachine(RuleBasedStateMachine):
    """Oracle: what each engine holds."""

    def __init__(self):
        super().__init__()
        self.world = World(NAMES)

    @rule(name=st.sampled_from(NAMES), numbers=NUMBERS)
    def hold(self, name, numbers):
        self.world.engines[name].hold([key(n) for n in numbers])

    @rule(name=st.sampled_from(NAMES), numbers=NUMBERS, signature=st.binary(min_size=1, max_size=4))
    def sign(self, name, numbers, signature):
        self.world.engines[name].sign([key(n) for n in numbers], signature)

    @rule(name=st.sampled_from(NAMES), numbers=NUMBERS)
    def drop(self, name, numbers):
        self.world.engines[name].drop([key(n) for n in numbers])

    @rule(name=st.sampled_from(NAMES), fault=st.sampled_from((*Channel.KINDS, "fine")))
    def speak(self, name, fault):
        """The next batch of this engine, whenever it is due, meets this fault."""
        publisher = self.world.engines[name].publisher
        channel = self.world.channel
        publisher._publish, publish = lambda data: channel.deliver(data, fault), publisher._publish
        self.world.now += max(publisher.pump(), 0.0)
        publisher.pump()
        publisher._publish = publish

    @rule(seconds=st.sampled_from([0.02, 1.0, 6.0, 70.0]))
    def pass_time(self, seconds):
        self.world.pass_time(seconds)

    @rule(seconds=st.sampled_from([0.5, 6.0, 70.0]))
    def be_silent(self, seconds):
        self.world.now += seconds

    @rule(name=st.sampled_from(NAMES))
    def restart_engine(self, name):
        self.world.restart(name)

    @rule()
    def restart_index(self):
        self.world.restart_index()

    @rule(name=st.sampled_from(NAMES))
    def forget(self, name):
        self.world.rsbcm.forget(name)

    @rule(name=st.sampled_from(NAMES), numbers=NUMBERS)
    def the_index_errs(self, name, numbers):
        """Its books are in order, but not what the engine holds."""
        index = self.world.rsbcm.index
        if (holder := index.live(name)) is not None:
            index._drop(holder, [key(n) for n in numbers])

    @rule()
    def settle(self):
        self.world.settle()
        assert self.world.agrees()

    @invariant()
    def books_balance(self):
        self.world.rsbcm.check_integrity()

    def teardown(self):
        self.settle()
        for engine in self.world.engines.values():
            engine.drop(list(engine.held))
        self.world.pass_time(2.0)
        assert self.world.agrees()
        assert self.world.rsbcm.index.stats()["segments"] == 0


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=60, stateful_step_count=25)


def churn(world, events, seed, per_call=250, most=2000):
    """`events` changes, as many of each kind once engines are full; calls of the engines, and time between them."""
    source = random.Random(seed)
    names = sorted(world.engines)
    shared = [source.randbytes(16) for _ in range(200)]
    while events > 0:
        engine = world.engines[source.choice(names)]
        if len(engine.held) > most:
            gone = engine.keys[: per_call * 2]
            engine.drop(gone)
            events -= len(gone)
        fresh = [source.randbytes(16) for _ in range(per_call - 20)] + source.sample(shared, 20)
        engine.hold(fresh)
        engine.sign(fresh[:2], fresh[0])
        events -= len(fresh)
        yield
        world.pass_time(source.choice([0.002, 0.02, 0.3]))


@pytest.mark.slow
def test_a_million_events_over_a_bad_channel():
    """10 % each of batches lost, repeated, late, without a reply, and said to be taken although they were not."""
    world = World((*NAMES, "d"), faults=0.1, seed=3)
    calls = 0
    for calls, _ in enumerate(churn(world, 1_000_000, seed=7), start=1):
        if calls % 500 == 250:
            world.restart("abcd"[calls // 500 % 4])
        if calls % 900 == 450:
            world.restart_index()
    faults = world.channel.batches
    total = sum(faults.values())
    assert total > 3000 and all(0.08 < faults[kind] / total < 0.12 for kind in Channel.KINDS)
    assert world.rsbcm.index.counts["resyncs"] > 0
    world.settle()
    assert world.agrees()
    assert world.rsbcm.index.stats()["entries"] > 4000
    for engine in world.engines.values():
        engine.drop(list(engine.held))
    world.pass_time(2.0)
    assert world.agrees() and world.rsbcm.index.stats()["segments"] == 0
    assert world.rsbcm.index.stats()["signatures"] == 0


def test_over_a_good_channel_nothing_is_sent_twice():
    world = World(NAMES)
    for _ in churn(world, 20_000, seed=1):
        pass
    world.pass_time(1.0)
    assert world.agrees()
    counts = [engine.publisher.counts for engine in world.engines.values()]
    assert sum(c["snapshots"] + c["lost"] for c in counts) == 0
    assert world.rsbcm.index.counts["resyncs"] == world.rsbcm.index.counts["mismatches"] == 0


# -- when a publisher speaks -----------------------------------------------------------------------------------------
@pytest.fixture
def world():
    return World(["a"])


@pytest.fixture
def sent(world):
    """Batches as they go out."""
    found = []
    publisher = world.engines["a"].publisher
    inner = publisher._publish

    def publish(data):
        found.append(unpack(data))
        return inner(data)

    publisher._publish = publish
    return found


def test_the_first_change_goes_out_at_once_and_the_next_ones_together(world, sent):
    engine = world.engines["a"]
    engine.publisher.pump()
    world.now += COALESCE_S
    engine.hold([key(1)])
    engine.publisher.pump()
    assert [batch.added for batch in sent] == [(), (key(1),)]
    for number in range(2, 9):
        engine.hold([key(number)])
        world.now += COALESCE_S / 10
        assert engine.publisher.pump() == pytest.approx(COALESCE_S - (number - 1) * COALESCE_S / 10)
    world.now += COALESCE_S
    engine.publisher.pump()
    assert len(sent) == 3 and len(sent[2].added) == 7


def test_many_changes_do_not_wait_and_large_ones_go_in_parts(world, sent):
    engine = world.engines["a"]
    engine.publisher.pump()
    engine.hold([n.to_bytes(16) for n in range(1, MANY + 1)])
    engine.publisher.pump()
    assert len(sent) == 2 and len(sent[1].added) == MANY
    engine.hold([(1 << 20 | n).to_bytes(16) for n in range(2 * MOST)])
    engine.publisher.pump()
    engine.publisher.pump()
    assert [len(batch.added) for batch in sent[2:]] == [MOST, MOST]
    assert sent[2].digest is None and sent[3].digest is not None


def test_a_key_that_came_and_went_is_one_change(world, sent):
    engine = world.engines["a"]
    engine.hold([key(1), key(2)])
    engine.drop([key(1)])
    engine.hold([key(3), key(1)])
    engine.drop([key(2)])
    engine.publisher.pump()
    assert (set(sent[0].added), sent[0].dropped) == ({key(1), key(3)}, (key(2),))


def test_an_idle_engine_says_every_second_that_it_lives(world, sent):
    world.pass_time(3.5)
    assert len(sent) == 4 and all(batch.digest.count == 0 for batch in sent)
    assert world.engines["a"].publisher.pump() <= RENEWAL_S


def test_an_index_that_always_asks_gets_one_snapshot_a_second(world, sent):
    engine = world.engines["a"]
    engine.hold([key(1)])
    inner = engine.publisher._publish

    def publish(data):
        world.rsbcm.forget("a")
        return inner(data)

    engine.publisher._publish = publish
    world.pass_time(1.0)
    world.rsbcm.index.apply = lambda batch: "resync"
    before = len(sent)
    world.pass_time(10.0)
    assert 8 <= len(sent) - before <= 22


def test_an_index_that_is_down_for_long_gets_a_snapshot_instead_of_all_that_went_by(world, sent, monkeypatch):
    monkeypatch.setattr("actors.publisher._BACKLOG", 100)
    engine = world.engines["a"]
    publish, engine.publisher._publish = engine.publisher._publish, lambda data: 1 / 0
    engine.hold([key(200)])
    for number in range(150):
        engine.hold([key(number)])
        engine.drop([key(number)])
        world.pass_time(0.1)
    assert len(engine.publisher._changed) <= 103 and sent == []
    engine.publisher._publish = publish
    world.pass_time(3.0)
    assert world.agrees() and any(batch.snapshot for batch in sent)


def test_a_successor_makes_its_predecessor_stale(world, sent):
    old = world.engines["a"]
    old.hold([key(1)])
    world.pass_time(0.1)
    world.restart("a")
    world.engines["a"].hold([key(2)])
    world.pass_time(0.1)
    old.hold([key(3)])
    old.publisher.flush()
    assert world.agrees() and world.rsbcm.index.counts["stale"] >= 1


def test_signatures_go_along_with_snapshots_and_not_with_what_is_dropped(world):
    engine = world.engines["a"]
    engine.hold([key(1), key(2)])
    engine.sign([key(1), key(2)], b"ab")
    engine.drop([key(2)])
    world.pass_time(0.1)
    world.restart_index()
    world.pass_time(1.1)
    assert world.agrees() and world.rsbcm.index.stats()["signatures"] == 1


def test_events_of_a_strange_size_are_counted_and_left_out(world):
    engine = world.engines["a"]
    bad = [
        KVEvent("add", b"short", bytes(16), 1),
        KVEvent("add", key(1), b"short", 1),
        KVEvent("add", key(1), bytes(16), 0),
        KVEvent("add", key(1), bytes(16), 1 << 32),
        KVEvent("drop", b""),
        KVEvent("sign", key(1), signature=bytes(513)),
    ]
    engine.publisher.note(bad)
    engine.hold([key(2)])
    engine.sign([key(2)], b"ab")
    engine.publisher.note([KVEvent("add", key(3), b"", 3)])
    engine.held[key(3)] = (bytes(16), 3)
    world.pass_time(0.1)
    assert world.agrees() and engine.publisher.counts["malformed"] == len(bad)
    assert world.rsbcm.index.nearest(b"ab", ["a"], 0.9) == "a"
