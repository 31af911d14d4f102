"""Block index: holders of prefixes from event batches that get lost, repeated, and outlive their senders."""

import pytest

from actors.block_index import LEASE_S, BlockIndex
from actors.messages import Digest
from tests.actors.batches import add, batch, drop, key, sign
from tests.search.calls import Calls

X, Y, Z, W = map(key, (b"x", b"y", b"z", b"w"))


@pytest.fixture
def now():
    return [100.0]


@pytest.fixture
def index(now):
    """Its books are checked at the end."""
    index = BlockIndex(lambda: now[0], LEASE_S)
    yield index
    index.check_integrity()


def test_adds_and_drops_of_two_holders(index):
    assert index.apply(batch(0, add(b"x", 3))) == "ok"
    assert index.apply(batch(0, add(b"x", 3), add(b"y", 5), actor="b")) == "ok"
    assert index.holders(X) == {"a", "b"} and index.holders(Y) == {"b"}
    index.apply(batch(1, drop(b"x"), drop(b"unknown")))
    assert index.holders(X) == {"b"}
    counts = index.stats()
    assert [counts[name] for name in ("segments", "entries", "holders", "live")] == [2, 2, 2, 2]


def test_held_is_the_longest_prefix_of_that_actor(index):
    index.apply(batch(0, add(b"x", 3), add(b"y", 5)))
    index.apply(batch(0, add(b"x", 3), actor="b"))
    keys, ends = (X, Y, Z), (3, 5, 9)
    assert [index.held(actor, keys, ends) for actor in ("a", "b", "c")] == [5, 3, 0]


def test_a_gap_asks_for_a_snapshot_that_replaces_everything(index):
    index.apply(batch(0, add(b"x"), add(b"y")))
    assert index.apply(batch(2, add(b"z"))) == "resync"
    assert index.holders(Z) == frozenset() and index.holders(X) == {"a"}
    assert index.apply(batch(3, add(b"z"), snapshot=True)) == "ok"
    assert (index.holders(X), index.holders(Y), index.holders(Z)) == (frozenset(), frozenset(), {"a"})
    assert index.apply(batch(4, add(b"w"))) == "ok"


def test_repeated_batches_change_nothing(index):
    first, second = batch(0, add(b"x")), batch(1, drop(b"x"))
    assert [index.apply(b) for b in (first, second, first, second, first)] == ["ok"] * 5
    assert index.holders(X) == frozenset()
    index.apply(batch(2, add(b"y")))
    assert index.apply(batch(1, add(b"old"), snapshot=True)) == "ok"
    assert index.holders(Y) == {"a"} and index.holders(key(b"old")) == frozenset()


def test_a_dead_predecessor_is_ignored_and_a_successor_starts_empty(index):
    index.apply(batch(0, add(b"x"), incarnation=5))
    assert index.apply(batch(1, add(b"y"), incarnation=4)) == "stale"
    assert index.holders(Y) == frozenset()
    assert index.apply(batch(0, add(b"z"), incarnation=6)) == "ok"
    assert index.holders(X) == frozenset() and index.holders(Z) == {"a"}
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
    assert (index.holders(X), index.holders(Y)) == (frozenset(), {"b"})
    assert index.apply(batch(1, add(b"x"))) == "resync"


def test_a_silent_holder_is_not_used_until_it_is_heard_again(index, now):
    index.apply(batch(0, add(b"x", 3), sign(b"x", b"ab")))
    index.apply(batch(0, add(b"x", 3), actor="b"))
    now[0] += LEASE_S - 0.1
    assert index.apply(batch(1, actor="b")) == "ok"
    assert index.holders(X) == {"a", "b"} and index.nearest(b"ab", ["a", "b"], 0.5) == "a"
    now[0] += 0.1
    assert index.holders(X) == {"b"} and index.held("a", [X], [3]) == 0 and index.held("b", [X], [3]) == 3
    assert index.nearest(b"ab", ["a", "b"], 0.5) is None
    assert (index.stats()["holders"], index.stats()["live"]) == (2, 1)
    assert index.apply(batch(1)) == "ok"
    assert index.holders(X) == {"a", "b"} and index.held("a", [X], [3]) == 3


def test_an_old_batch_that_comes_late_renews_no_lease(index, now):
    index.apply(batch(0, add(b"x", 3)))
    now[0] += LEASE_S
    assert index.apply(batch(0, add(b"x", 3))) == "ok"
    assert index.holders(X) == frozenset()


def test_a_holder_that_is_silent_for_long_is_forgotten_and_sends_a_snapshot_when_it_returns(index, now):
    index.apply(batch(0, add(b"x")))
    now[0] += 12 * LEASE_S
    index.apply(batch(0, add(b"y"), actor="b"))
    assert index.stats()["entries"] == 1 and index.stats()["expired"] == 1
    assert index.apply(batch(1)) == "resync"
    assert index.apply(batch(2, add(b"x"), snapshot=True)) == "ok"
    assert index.holders(X) == {"a"}


def test_without_a_lease_nobody_expires(now):
    index = BlockIndex(lambda: now[0])
    index.apply(batch(0, add(b"x")))
    now[0] += 1e9
    assert index.holders(X) == {"a"}


def test_a_digest_that_differs_asks_for_a_snapshot(index):
    right = Digest().plus([X, Y])
    assert index.apply(batch(0, add(b"x"), add(b"y"), digest=right)) == "ok"
    assert index.apply(batch(1, digest=right)) == "ok"
    for seq, wrong in enumerate((Digest(2, right.xor ^ 1), Digest(3, right.xor), Digest()), start=2):
        assert index.apply(batch(seq, digest=wrong)) == "resync"
    assert index.stats()["mismatches"] == 3
    assert index.apply(batch(5, drop(b"y"), add(b"x", 9), digest=Digest().plus([X]))) == "ok"
    assert index.held("a", [X], [9]) == 9


def test_a_bit_that_is_free_again_is_used_again_and_names_nobody_else(index):
    for name in "abc":
        index.apply(batch(0, add(b"x"), actor=name))
    assert index.holders(X) == {"a", "b", "c"}
    index.forget("b")
    assert index.holders(X) == {"a", "c"}
    index.apply(batch(0, add(b"y"), actor="d"))
    assert index.holders(X) == {"a", "c"} and index.holders(Y) == {"d"}


def test_replicas_are_with_others_who_were_not_asked_to_drop_theirs(index):
    index.apply(batch(0, add(b"x"), add(b"y"), add(b"z")))
    index.apply(batch(0, add(b"x"), add(b"y"), actor="b"))
    assert index.replicas([X, Y, Z], "a") == {X, Y}
    index.live("b").proposed = frozenset([X])
    assert index.replicas([X, Y, Z], "a") == {Y} and index.replicas([X, Y, Z], "b") == {X, Y, Z}


def test_replicas_of_what_one_engine_holds_alone_cost_the_same_among_many_engines():
    def calls(engines):
        index = BlockIndex(lease_s=LEASE_S)
        alone = [f"only {number}".encode() for number in range(100)]
        index.apply(batch(0, add(b"x"), *map(add, alone)))
        for number in range(engines):
            index.apply(batch(0, *([add(b"x")] if number == 0 else []), add(b"y"), actor=f"e{number}"))
        counted = Calls()
        with counted:
            found = index.replicas([X, *map(key, alone)], "a")
        assert found == {X}
        return counted.count

    assert calls(200) <= calls(2) + 2 * 200


@pytest.mark.parametrize("damage", ["mask", "key", "digest", "signature"])
def test_books_that_do_not_balance_are_found(damage):
    index = BlockIndex()
    index.apply(batch(0, add(b"x"), add(b"y")))
    holder = index.live("a")
    if damage == "mask":
        index._masks[Z] = holder.bit
    elif damage == "key":
        holder.keys[Z] = (X, 1)
        holder.digest = holder.digest.plus([Z])
    elif damage == "digest":
        holder.digest = Digest()
    else:
        holder.signatures[Z] = b"ab"
    with pytest.raises(RuntimeError):
        index.check_integrity()
