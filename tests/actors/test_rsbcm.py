"""The RSBCM actor: pins and scores of several drivers, eviction proposals, and calls that make no sense."""

import asyncio
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.block_index import LEASE_S
from actors.claims import DRIVER_LEASE_S, Claims
from actors.eviction_proposals import MOST, propose
from actors.handles import InlineIndex
from actors.live_pins import LivePins
from actors.messages import Memory, pack
from actors.placement import Branch, Load
from actors.rsbcm import NOTICE_S, RSBCM, Assignment, Scored
from tests.actors.batches import add, batch, drop, key

A, B, C, D = map(key, (b"a", b"b", b"c", b"d"))


@pytest.fixture
def now():
    return [50.0]


@pytest.fixture
def rsbcm(now):
    rsbcm = RSBCM(lambda: now[0], LEASE_S)
    yield rsbcm
    rsbcm.check_integrity()


def counts(rsbcm, *names):
    found = rsbcm.stats()
    return [found[name] for name in names]


def pin(rsbcm, driver, tree, *keys):
    branch = Branch("b", keys, tuple(range(1, len(keys) + 1)), 1, 10)
    rsbcm.assign(Assignment(tree, (branch,), {"a": Load()}, 2, driver=driver))


# -- drivers ---------------------------------------------------------------------------------------------------------
def test_two_drivers_with_trees_of_one_name_do_not_disturb_each_other(rsbcm):
    pin(rsbcm, "one", "tree", A, B)
    pin(rsbcm, "two", "tree", A, C)
    pin(rsbcm, "two", "other", A)
    assert counts(rsbcm, "claimants", "pins") == [2, 5]
    rsbcm.unpin("one", [A, C])
    assert rsbcm.claims.pinned(A) and rsbcm.claims.pinned(C)
    rsbcm.end_tree("tree", "one")
    assert not rsbcm.claims.pinned(B) and rsbcm.claims.pinned(C)
    rsbcm.end_tree("tree", "two")
    assert rsbcm.claims.pinned(A) and not rsbcm.claims.pinned(C)
    rsbcm.end_tree("other", "two")
    assert counts(rsbcm, "pins") == [0]


def test_a_tree_that_ends_takes_the_scores_along_that_no_other_tree_needs(rsbcm):
    pin(rsbcm, "one", "tree", A, B)
    pin(rsbcm, "one", "other", A)
    rsbcm.note_scores([Scored(A, 0.5, 0), Scored(B, 0.5, 0)], "one")
    rsbcm.end_tree("tree", "one")
    assert rsbcm.claims.omega(A) == 0.5 and rsbcm.claims.omega(B) is None


def test_omega_is_score_over_depth_plus_one_and_the_highest_of_all_drivers(rsbcm):
    rsbcm.note_scores([Scored(A, 0.8, 1), Scored(B, 0.9, 0)], "one")
    rsbcm.note_scores([Scored(A, 0.8, 3)], "two")
    assert rsbcm.claims.omega(A) == pytest.approx(0.4) and rsbcm.claims.omega(C) is None
    rsbcm.note_scores([Scored(A, 0.4, 3)], "one")
    assert rsbcm.claims.omega(A) == pytest.approx(0.2)
    rsbcm.unpin("one", [B])
    assert rsbcm.claims.omega(B) is None


def test_pinning_nothing_is_nothing(rsbcm):
    rsbcm.restore("one", {"tree": []})
    pin(rsbcm, "one", "tree")
    assert counts(rsbcm, "pins", "bad_messages") == [0, 0]


def test_a_dead_driver_loses_its_pins_and_scores_and_the_others_keep_theirs(rsbcm, now):
    pin(rsbcm, "one", "tree", A)
    rsbcm.note_scores([Scored(A, 0.8, 1)], "one")
    pin(rsbcm, "two", "tree", B)
    now[0] += DRIVER_LEASE_S - 1
    assert rsbcm.renew("two", 1) == "ok"
    now[0] += 1
    rsbcm.apply(pack(batch(0, add(b"a"))))
    assert not rsbcm.claims.pinned(A) and rsbcm.claims.omega(A) is None and rsbcm.claims.pinned(B)
    assert rsbcm.renew("one", 1) == "resync"


def test_a_notice_that_a_node_leaves_runs_out_and_is_forgotten_long_after(rsbcm, now):
    rsbcm.leave("n1", 120)
    rsbcm.leave("n2", 10.0)
    now[0] += 30
    assert rsbcm.leaving() == {"n1": 90.0, "n2": 0.0}
    now[0] += NOTICE_S
    assert rsbcm.leaving() == {"n1": 0.0}
    for seconds in (-1, float("nan"), float("inf"), "soon"):
        rsbcm.leave("n3", seconds)
    assert list(rsbcm.leaving()) == ["n1"] and counts(rsbcm, "bad_messages") == [4]


def test_a_driver_tells_a_new_index_its_pins_again(rsbcm):
    assert rsbcm.renew("one", 0) == "ok"
    assert rsbcm.renew("one", 3) == "resync"
    pin(rsbcm, "one", "stale", D)
    rsbcm.restore("one", {"tree": [A, B], "other": [A]})
    assert rsbcm.renew("one", 3) == "ok" and not rsbcm.claims.pinned(D)
    pin(rsbcm, "one", "tree", A)
    assert rsbcm.renew("one", 3) == "ok"


def test_a_driver_keeps_its_pins_alive_and_gives_them_to_a_new_index(rsbcm, now):
    index = InlineIndex(rsbcm)
    pins = LivePins("one", index, lambda: now[0])
    pins.note("tree", [A, B])
    pins.note("other", [A, C])
    asyncio.run(pins.renew())
    assert counts(rsbcm, "pins") == [4]
    now[0] += DRIVER_LEASE_S - 1
    asyncio.run(pins.renew())
    now[0] += DRIVER_LEASE_S - 1
    rsbcm.claims.expire()
    assert counts(rsbcm, "pins") == [4]
    index.rsbcm = RSBCM(lambda: now[0])
    asyncio.run(pins.renew())
    asyncio.run(pins.renew())
    assert counts(index.rsbcm, "pins") == [4]
    asyncio.run(pins.unpin([A]))
    asyncio.run(pins.end_tree("tree"))
    assert counts(index.rsbcm, "pins") == [1] and pins.trees == {"other": {C}}
    asyncio.run(pins.end_tree("other"))
    assert counts(index.rsbcm, "pins") == [0] and pins.trees == {}


# -- eviction proposals ----------------------------------------------------------------------------------------------
def told(rsbcm, seq, *events, used=0, limit=100, actor="a", **more):
    """Reply to a batch of an engine with so many bytes of KV, one a token."""
    return rsbcm.apply(pack(batch(seq, *events, actor=actor, memory=Memory(used, limit, 1), **more)))


FAMILY = (add(b"a", 10), add(b"b", 30, b"a"), add(b"c", 20, b"a"), add(b"d", 40, b"c"))


def test_below_the_high_water_mark_nothing_is_proposed(rsbcm):
    assert told(rsbcm, 0, *FAMILY, used=90).evict == ()
    assert rsbcm.apply(pack(batch(1))).evict == ()


def test_leaves_of_the_lowest_omega_go_first_and_unscored_ones_before_them(rsbcm, now):
    rsbcm.note_scores([Scored(B, 0.2, 1), Scored(D, 0.9, 2), Scored(C, 0.01, 1)])
    assert told(rsbcm, 0, *FAMILY, used=91).evict == (B,)
    now[0] += 1
    assert told(rsbcm, 1, used=115).evict == (B, D)
    now[0] += 1
    assert told(rsbcm, 2, add(b"x", 5), used=91).evict == (key(b"x"),)


def test_no_trunk_goes_before_its_leaves(rsbcm):
    rsbcm.note_scores([Scored(A, 0.0, 0), Scored(C, 0.0, 1), Scored(D, 0.9, 2), Scored(B, 0.5, 1)])
    assert told(rsbcm, 0, *FAMILY, used=1000).evict == (B, D, C, A)


def test_pinned_segments_and_all_above_them_are_never_proposed(rsbcm, now):
    pin(rsbcm, "one", "tree", A, C)
    assert told(rsbcm, 0, *FAMILY, used=1000).evict == (B, D)
    pin(rsbcm, "one", "tree", D)
    now[0] += 1
    assert told(rsbcm, 1, used=1000).evict == (B,)
    rsbcm.end_tree("tree", "one")
    now[0] += 1
    assert set(told(rsbcm, 2, used=1000).evict) == {A, B, C, D}


def test_what_another_engine_holds_goes_first_but_not_from_both(rsbcm, now):
    rsbcm.note_scores([Scored(B, 0.1, 1), Scored(D, 0.9, 2)])
    told(rsbcm, 0, *FAMILY, actor="b")
    assert told(rsbcm, 0, *FAMILY, used=91).evict == (B,)
    now[0] += 1
    told(rsbcm, 1, drop(b"b"), actor="b")
    assert told(rsbcm, 1, used=91).evict == (D,)
    now[0] += 1
    rsbcm.index.live("a")
    assert told(rsbcm, 2, actor="b", used=91).evict == (D,), "nothing is left elsewhere: by omega"


def test_a_replica_on_a_silent_engine_is_none(rsbcm, now):
    rsbcm.note_scores([Scored(B, 0.1, 1), Scored(D, 0.9, 2)])
    told(rsbcm, 0, add(b"a", 10), add(b"c", 20, b"a"), add(b"d", 40, b"c"), actor="b")
    now[0] += LEASE_S
    assert told(rsbcm, 0, *FAMILY, used=91).evict == (B,)


def test_refused_proposals_are_not_repeated_at_once(rsbcm, now):
    assert told(rsbcm, 0, *FAMILY, used=91).evict == (B,)
    assert told(rsbcm, 1, used=91).evict == (), "once a second"
    now[0] += 1
    assert told(rsbcm, 2, used=91, refused=(B,)).evict == (D,)
    now[0] += 1
    assert told(rsbcm, 3, used=91).evict == (B,)
    assert counts(rsbcm, "proposed", "refused") == [3, 1]


def test_proposals_are_bounded_and_cover_what_is_too_much():
    held = {key(str(n).encode()): (A, 10 + n % 7) for n in range(1000)}
    nothing = lambda keys: set()  # noqa: E731
    chosen = propose(held, 55, lambda key: None, lambda key: False, nothing)
    assert 55 <= sum(held[k][1] for k in chosen) < 55 + 17
    assert len(propose(held, 10**9, lambda key: None, lambda key: False, nothing)) == MOST
    assert propose(held, 10**9, lambda key: None, lambda key: True, nothing) == ()
    assert propose({}, 5, lambda key: None, lambda key: False, nothing) == ()


@given(
    st.lists(st.tuples(st.integers(0, 40), st.none() | st.floats(0, 1)), max_size=40),
    st.sets(st.integers(0, 40)),
    st.integers(0, 60),
)
def test_proposals_can_be_followed_one_after_the_other(nodes, kept, tokens):
    """Each is a leaf once those before it went; nothing kept, nor above it, is among them."""
    names = [key(str(n).encode()) for n in range(len(nodes))]
    held = {
        name: (names[up % n], 2 + n) if n and up % 3 else (key(b"root"), 2 + n)
        for n, (name, (up, _)) in enumerate(zip(names, nodes, strict=True))
    }
    omegas = {name: omega for name, (_, omega) in zip(names, nodes, strict=True)}
    barred = {key(str(n).encode()) for n in kept}
    chosen = propose(held, tokens, omegas.get, barred.__contains__, lambda keys: set())
    left = dict(held)
    for name in chosen:
        assert name not in barred and all(parent != name for parent, _ in left.values())
        del left[name]
    if tokens == 0:
        assert chosen == ()


# -- calls that make no sense ----------------------------------------------------------------------------------------
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
CALLS = {"apply": 1, "forget": 1, "unpin": 2, "renew": 2, "restore": 2, "note_scores": 2, "end_tree": 2}


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(sorted(CALLS)), st.lists(JUNK, min_size=3, max_size=3)), max_size=12))
def test_no_call_of_any_shape_raises_or_unbalances_the_books(calls):
    rsbcm = RSBCM()
    for name, arguments in calls:
        getattr(rsbcm, name)(*arguments[: CALLS[name]])
    rsbcm.check_integrity()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("apply", [b"\xc1"]),
        ("apply", [None]),
        ("forget", [3]),
        ("unpin", ["d", [b"short"]]),
        ("unpin", ["d", "keys"]),
        ("unpin", [None, []]),
        ("renew", ["d", "3"]),
        ("restore", ["d", [A]]),
        ("restore", ["d", {"t": [None]}]),
        ("note_scores", [7]),
        ("note_scores", [["text"]]),
        ("note_scores", [[Scored(A, math.nan, 1)]]),
        ("note_scores", [[Scored(A, 0.5, -1)]]),
        ("note_scores", [[Scored(A, 0.5, 1)], None]),
        ("end_tree", ["t", b"d"]),
        ("end_tree", [5]),
    ],
)
def test_each_costs_a_counter(rsbcm, name, arguments):
    getattr(rsbcm, name)(*arguments)
    assert counts(rsbcm, "bad_messages", "pins", "scored") == [1, 0, 0]


def test_pins_that_do_not_add_up_are_found():
    claims = Claims()
    claims.pin("d", "t", [A])
    claims._pins[A] = 2
    with pytest.raises(RuntimeError, match="pins"):
        claims.check_integrity()


# -- placement over it -----------------------------------------------------------------------------------------------
def test_a_branch_goes_where_its_prefix_is_and_trees_end(rsbcm):
    rsbcm.apply(pack(batch(0, add(b"a", 6))))
    branch = Branch("b", (A,), (6,), 1, 10)
    placed = rsbcm.assign(Assignment("tree", (branch,), {"a": Load(), "b": Load()}, 2))
    assert (placed[0].actor, placed[0].predicted_hit) == ("a", 6)
    assert rsbcm.stats()["trees"] == 1
    rsbcm.end_tree("tree")
    rsbcm.end_tree("tree")
    assert rsbcm.stats()["trees"] == 0


def test_an_expired_holder_predicts_no_hit(rsbcm, now):
    rsbcm.apply(pack(batch(0, add(b"a", 6))))
    now[0] += LEASE_S
    branch = Branch("b", (A,), (6,), 1, 10)
    assert rsbcm.assign(Assignment("tree", (branch,), {"a": Load()}, 2))[0].predicted_hit == 0
