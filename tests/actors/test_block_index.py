"""Block index: holders of prefixes from event batches that get lost, repeated, and outlive their senders."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from actors.block_index import BlockIndex
from actors.engine_actor import EngineActor
from actors.messages import EventBatch, unpack
from actors.placement import Branch, Load
from actors.rsbcm import RSBCM, Assignment, Scored
from engine.base import BranchRequest, KVEvent, StepRule, path_keys
from engine.scripted import ScriptedEngine
from search.types import Expansion, Sampling


def add(key, end=1):
    return KVEvent("add", key, b"", end)


def drop(key):
    return KVEvent("drop", key)


def batch(seq, *events, actor="a", incarnation=1, snapshot=False):
    return EventBatch(actor, incarnation, seq, 0.0, events, snapshot)


@pytest.fixture
def index():
    return BlockIndex()


def test_adds_and_drops_of_two_holders(index):
    assert index.apply(batch(0, add(b"x", 3))) == "ok"
    assert index.apply(batch(0, add(b"x", 3), add(b"y", 5), actor="b")) == "ok"
    assert index.holders(b"x") == {"a", "b"} and index.holders(b"y") == {"b"}
    index.apply(batch(1, drop(b"x"), drop(b"unknown")))
    assert index.holders(b"x") == {"b"}
    assert index.stats() == {"segments": 2, "entries": 2, "holders": 2, "scored": 0, "signatures": 0}


def test_held_is_the_longest_prefix_of_that_actor(index):
    index.apply(batch(0, add(b"x", 3), add(b"y", 5)))
    index.apply(batch(0, add(b"x", 3), actor="b"))
    keys, ends = (b"x", b"y", b"z"), (3, 5, 9)
    assert [index.held(actor, keys, ends) for actor in ("a", "b", "c")] == [5, 3, 0]


def test_a_gap_asks_for_a_snapshot_that_replaces_everything(index):
    index.apply(batch(0, add(b"x"), add(b"y")))
    assert index.apply(batch(2, add(b"z"))) == "resync"
    assert index.holders(b"z") == frozenset() and index.holders(b"x") == {"a"}
    assert index.apply(batch(3, add(b"z"), snapshot=True)) == "ok"
    assert (index.holders(b"x"), index.holders(b"y"), index.holders(b"z")) == (frozenset(), frozenset(), {"a"})
    assert index.apply(batch(4, add(b"w"))) == "ok"


def test_repeated_batches_change_nothing(index):
    first, second = batch(0, add(b"x")), batch(1, drop(b"x"))
    assert [index.apply(b) for b in (first, second, first, second, first)] == ["ok"] * 5
    assert index.holders(b"x") == frozenset()
    index.apply(batch(2, add(b"y")))
    assert index.apply(batch(1, add(b"old"), snapshot=True)) == "ok"
    assert index.holders(b"y") == {"a"} and index.holders(b"old") == frozenset()


def test_a_dead_predecessor_is_ignored_and_a_successor_starts_empty(index):
    index.apply(batch(0, add(b"x"), incarnation=5))
    assert index.apply(batch(1, add(b"y"), incarnation=4)) == "stale"
    assert index.holders(b"y") == frozenset()
    assert index.apply(batch(0, add(b"z"), incarnation=6)) == "ok"
    assert index.holders(b"x") == frozenset() and index.holders(b"z") == {"a"}
    assert index.apply(batch(1, add(b"x"), incarnation=5, snapshot=True)) == "stale"


def test_an_unknown_sender_in_mid_stream_is_asked_for_a_snapshot(index):
    assert index.apply(batch(7, add(b"x"))) == "resync"
    assert index.apply(batch(8, add(b"x"), add(b"y"), snapshot=True)) == "ok"
    assert index.stats()["entries"] == 2


def test_forget_drops_all_of_one_actor(index):
    index.apply(batch(0, add(b"x"), add(b"y")))
    index.apply(batch(0, add(b"y"), actor="b"))
    index.forget("a")
    index.forget("nobody")
    assert (index.holders(b"x"), index.holders(b"y")) == (frozenset(), {"b"})
    assert index.apply(batch(1, add(b"x"))) == "resync"


def test_omega_is_score_over_depth_plus_one_while_somebody_holds_the_segment(index):
    index.note_score(b"x", 0.8, 1)
    assert index.omega(b"x") is None
    index.apply(batch(0, add(b"x")))
    index.apply(batch(0, add(b"x"), actor="b"))
    index.note_score(b"x", 0.8, 3)
    assert index.omega(b"x") == pytest.approx(0.2)
    index.apply(batch(1, drop(b"x")))
    assert index.omega(b"x") == pytest.approx(0.2)
    index.forget("b")
    assert index.omega(b"x") is None and index.stats()["scored"] == 0


# -- an engine actor that publishes to it --------------------------------------------------------------------------
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
        held = {event.key: event.end for event in actor.engine.snapshot()}
        index = self.rsbcm.index
        same = all(index.held(actor.name, [key], [end]) == end for key, end in held.items())
        return same and index.stats()["entries"] == len(held)


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


def test_lost_batches_are_made_up_for_by_a_snapshot(wire, actor):
    actor.expand([order(0)], "t")
    wire.lost = 2
    actor.expand([order(1)], "t")
    actor.expand([order(2)], "t")
    assert not wire.agrees(actor)
    actor.expand([order(3)], "t")
    assert wire.agrees(actor)
    assert [b.snapshot for b in wire.batches] == [False, False, False, False, True]


def test_a_new_index_rebuilds_from_a_snapshot(wire, actor):
    actor.expand([order(0)], "t")
    actor.expand([order(1)], "t")
    wire.rsbcm = RSBCM()
    actor.expand([order(2)], "t")
    assert wire.agrees(actor)


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
    assert [batch.seq for batch in wire.batches] == list(range(len(wire.batches)))


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


# -- the index actor -----------------------------------------------------------------------------------------------
def test_scores_and_trees_end(wire, actor):
    actor.expand([order(0)], "t")
    key = path_keys("factory", order(0).context)[0]
    wire.rsbcm.note_scores([Scored(key, 0.5, 0), Scored(b"unknown", 0.5, 0)])
    assert wire.rsbcm.index.omega(key) == 0.5
    branch = Branch("b", (key,), (6,), 1, 10)
    placed = wire.rsbcm.assign(Assignment("tree", (branch,), {"a": Load(), "b": Load()}, 2))
    assert (placed[0].actor, placed[0].predicted_hit) == ("a", 6)
    assert wire.rsbcm.stats()["trees"] == 1
    wire.rsbcm.end_tree("tree")
    wire.rsbcm.end_tree("tree")
    assert wire.rsbcm.stats()["trees"] == 0
    assert wire.rsbcm.apply(b"\xc1") == "bad" and wire.rsbcm.stats()["bad_messages"] == 1


def test_step_rules_reach_the_engine():
    rule = StepRule(max_tokens=4, delimiter=None)
    result = ScriptedEngine(["abcdefgh"]).expand([BranchRequest("b", ((1, 2),), (0,), rule)])[0]
    assert (result.branches[0].text, result.branches[0].finish) == ("abcd", "length")
