"""Eviction policies: orders worked out by hand, states device | host | dropped, and memory that a split shares."""

import pytest

from engine.base import BranchRequest, StepRule, path_keys
from engine.eviction import POLICIES, Scores, policy
from engine.kv_tree import KVBudgetError, KVTree
from engine.simulated import SimulatedEngine
from tests.engine.fake_kv import BYTES, FakeKV, cut, store

PRINT = "model"


def key(tokens):
    return path_keys(PRINT, ((*tokens, 0),))[0]


def tree_with(*paths, eviction="lru", **options):
    tree = KVTree(PRINT, policy=policy(eviction), **options)
    for path in paths:
        tree.insert(path, cut(path))
    return tree


def where(tree, tokens):
    """State of the segment that ends at `tokens`."""
    segment = tree.find(key(tokens))
    return "dropped" if segment is None else segment.state


def order_of_going(tree):
    """Paths in the order in which they leave the device, one segment at a time."""
    gone = []
    while tree.device.nbytes:
        before = {s.key: tuple(t for part in s.path() for t in part.tokens) for s in tree.segments()}
        tree.budget_bytes = tree.device.nbytes - 1
        tree.enforce_budget()
        gone += [before[k] for k in before if tree.find(k) is None]
    tree.check_integrity()
    return gone


# -- orders --------------------------------------------------------------------------------------------------------
def test_lru_goes_by_the_last_match():
    tree = tree_with((1,), (1, 2), (1, 3), (5,))
    for path in ((1, 3), (5,), (1, 2)):
        tree.match(path)
    assert order_of_going(tree) == [(1, 3), (5,), (1, 2), (1,)]


def test_omega_goes_by_score_over_depth_and_unscored_segments_first():
    """Scores 0.9 at depth 2 (0.3), 0.5 at depth 1 (0.25), 0.8 at depth 1 (0.4); (4,) and the trunk have none.

    The trunk outlives its leaves, then goes before scored ones: nothing live below it has a score any more.
    """
    tree = tree_with((1,), (1, 2), (1, 3), (4,), (5,), eviction="omega")
    tree.note_scores([(key((1, 2)), 0.9, 2), (key((1, 3)), 0.5, 1), (key((5,)), 0.8, 1)])
    tree.match((4,))
    assert order_of_going(tree) == [(4,), (1, 3), (1, 2), (1,), (5,)]


def test_omega_of_a_trunk_is_the_best_below_it_also_on_the_host():
    """Both leaves of (1,) are on the host: omega of (1,) is 0.45, from one of them, so (5,) at 0.4 goes first."""
    tree = tree_with((1,), (1, 2), (1, 3), (5,), eviction="omega", host_budget_bytes=100)
    tree.note_scores([(key((1, 2)), 0.9, 1), (key((1, 3)), 0.2, 1), (key((5,)), 0.8, 1)])
    for tokens in ((1, 2), (1, 3)):
        tree.offload(tree.find(key(tokens)))
    tree.budget_bytes = BYTES
    tree.enforce_budget()
    assert (where(tree, (1,)), where(tree, (5,))) == ("device", "host")


def test_equal_omegas_go_by_least_recent_use():
    tree = tree_with((1,), (2,), (3,), eviction="omega")
    tree.note_scores([(key((t,)), 0.5, 0) for t in (1, 2, 3)])
    for token in (3, 1, 2):
        tree.match((token,))
    assert order_of_going(tree) == [(3,), (1,), (2,)]


def test_value_goes_by_likely_use_times_cost_over_bytes():
    """Clock 6. A: 32 tokens at 0, 3 matches, age 3. B: 64 tokens, 1 match, age 1. C: 1 token, 1 match, age 0.

    A: 4/7 x (32 + 32 x 1.002) / 320 = 0.114; B: 2/3 x (32 + 64 x 1.004) / 640 = 0.100; C: 1 x 33 / 10 = 3.3.
    """
    a, b, c = tuple(range(100, 132)), tuple(range(200, 264)), (7,)
    tree = tree_with(eviction="value")
    for path in (a, b, c):
        tree.insert(path, cut(path))
    for path, hits, used in ((a, 3, 3), (b, 1, 5), (c, 1, 6)):
        segment = tree.find(key(path))
        segment.hits, segment.used = hits, used
    tree.clock = 6
    rank = {name: tree.policy.order(tree.find(key(path)), 6)[0] for name, path in (("a", a), ("b", b), ("c", c))}
    assert rank == pytest.approx({"a": 0.1144, "b": 0.1003, "c": 3.3}, abs=2e-4)
    assert order_of_going(tree) == [b, a, c]


def test_unknown_policies_name_the_choices():
    assert sorted(POLICIES) == ["lru", "omega", "value"]
    with pytest.raises(ValueError, match="unknown eviction policy 'fifo'; choices: lru, omega, value"):
        policy("fifo")


def test_scores_come_before_their_segment_outlive_it_and_are_bounded():
    tree = tree_with(eviction="omega")
    tree.note_scores([(key((1, 2)), 0.6, 2)])
    tree.insert((1, 2, 3), cut((1, 2, 3)))
    assert tree.insert((1, 2), cut((1, 2))).omega == pytest.approx(0.2)
    tree.release(key((1, 2)))
    assert tree.scores.get(key((1, 2))) is None
    scores = Scores()
    scores.note([(i.to_bytes(4), 1.0, 0) for i in range((1 << 16) + 5)])
    assert scores.get((4).to_bytes(4)) is None and scores.get((5).to_bytes(4)) == 1.0


# -- states --------------------------------------------------------------------------------------------------------
def test_a_buffer_nobody_else_keeps_becomes_the_segments_own_unless_much_of_it_is_wasted():
    tight, loose = tuple(range(16)), tuple(range(20, 36))
    tree = tree_with(budget_bytes=1000)
    assert store(tree, tight, waste=2).payload.store[1] == 18 * BYTES
    assert store(tree, loose, waste=3).payload.store[1] == 16 * BYTES
    assert store(tree, (*tight[:8], 99), waste=0).payload.store[1] == 1 * BYTES
    assert tree.device.nbytes == (18 + 16 + 1) * BYTES
    assert store(tree_with(budget_bytes=35 * BYTES), loose, waste=3) is not None
    assert store(tree_with(budget_bytes=34 * BYTES), loose, waste=3) is None, "the copy and its original, for a moment"
    tree.check_integrity()


def test_evicted_segments_go_to_the_host_and_come_back_on_a_match():
    tree = tree_with((1, 2), (1, 2, 3), (1, 2, 4), budget_bytes=30, host_budget_bytes=100)
    tree.match((1, 2, 4))
    tree.enforce_budget()
    assert [where(tree, p) for p in ((1, 2), (1, 2, 3), (1, 2, 4))] == ["device", "host", "device"]
    assert (tree.num_tokens, tree.num_bytes, tree.host.nbytes) == (4, 30, 10)
    assert store(tree, (1, 2, 3)) is tree.find(key((1, 2, 3)))
    assert [where(tree, p) for p in ((1, 2, 3), (1, 2, 4))] == ["device", "host"]
    assert tree.memory() | {"kv_peak_bytes": 0} == {
        "kv_tokens": 4,
        "kv_bytes": 30,
        "kv_peak_bytes": 0,
        "kv_host_bytes": 10,
        "evicted": 2,
        "offloaded": 2,
        "restored": 1,
        "recomputed_tokens": 0,
    }
    assert tree.events()[-1].op == "add"
    tree.check_integrity()


def test_a_full_host_drops_its_worst_and_counts_what_is_computed_again():
    tree = tree_with((1,), (2,), (3,), budget_bytes=10, host_budget_bytes=10)
    tree.enforce_budget()
    assert [where(tree, (t,)) for t in (1, 2, 3)] == ["dropped", "host", "device"]
    assert tree.count_recomputed((1, 9), tree.reach((1, 9))) == 1
    assert tree.count_recomputed((3, 9), tree.reach((3, 9))) == 0
    assert tree.num_recomputed == 1


def test_the_host_does_not_give_a_better_place_away():
    """(1,) has omega 0.9 and is on the host; the unscored (2,) leaves the device for good."""
    tree = tree_with((1,), (2,), eviction="omega", host_budget_bytes=10)
    tree.note_scores([(key((1,)), 0.9, 0)])
    tree.offload(tree.find(key((1,))))
    tree.budget_bytes = 5
    tree.enforce_budget()
    assert (where(tree, (1,)), where(tree, (2,))) == ("host", "dropped")


def test_a_zero_budget_keeps_nothing_on_the_host_either():
    tree = tree_with((1,), (2,), budget_bytes=0, host_budget_bytes=100)
    tree.enforce_budget()
    assert (tree.num_tokens, tree.host.nbytes) == (0, 0)


def test_what_finds_no_room_on_the_device_is_held_on_the_host():
    tree = tree_with((1, 2), budget_bytes=20, host_budget_bytes=10)
    reader = tree.find(key((1, 2)))
    tree.pin(reader)
    assert store(tree, (1, 2, 3)).state == "host"
    assert store(tree, (1, 2, 4, 5)) is None
    tree.unpin(reader)
    assert store(tree, (1, 2, 3)) is None or tree.find(key((1, 2, 3))).state == "host"
    tree.check_integrity()


def test_room_is_made_before_it_is_used_and_never_at_a_readers_cost():
    tree = tree_with((1, 2), (3, 4), budget_bytes=40)
    tree.pin(tree.find(key((1, 2))))
    assert not tree.make_room(21)
    assert tree.num_tokens == 4
    assert tree.make_room(20)
    assert (tree.num_tokens, tree.peak_bytes) == (2, 40)
    tree.outside = lambda: 20
    assert not tree.make_room(1)


def test_a_restore_without_room_is_told():
    tree = tree_with((1, 2), host_budget_bytes=20)
    tree.offload(tree.find(key((1, 2))))
    tree.budget_bytes = 10
    with pytest.raises(KVBudgetError, match="20 bytes"):
        tree.restore(tree.find(key((1, 2))))
    assert all(segment.readers == 0 for segment in tree.segments())


# -- shared memory -------------------------------------------------------------------------------------------------
def test_a_split_shares_memory_until_one_part_goes_and_the_rest_is_copied():
    tree = tree_with((1, 2, 3, 4), (1, 2, 5))
    assert (tree.num_bytes, tree.device.nbytes) == (50, 50)
    tree.release(key((1, 2, 3, 4)))
    assert (tree.num_bytes, tree.device.nbytes) == (30, 30)
    tree.check_integrity()


def test_memory_of_a_pinned_part_counts_whole_until_its_reader_is_gone():
    tree = tree_with((1, 2, 3, 4), (1, 2, 5))
    reader = tree.find(key((1, 2)))
    tree.pin(reader)
    tree.release(key((1, 2, 3, 4)))
    assert (tree.num_bytes, tree.device.nbytes, tree.device.pinned) == (30, 50, 40)
    tree.unpin(reader)
    tree.enforce_budget()
    assert (tree.device.nbytes, tree.device.pinned) == (30, 0)
    tree.check_integrity()


def test_a_pinned_path_can_be_detached_from_what_shares_its_memory():
    tree = tree_with((1, 2, 3, 4), (1, 2, 5), budget_bytes=70)
    reader = tree.find(key((1, 2)))
    tree.pin(reader)
    assert tree.device.pinned == 40
    assert tree.detach(reader) and not tree.detach(reader)
    assert tree.device.pinned == 20
    tree.unpin(reader)
    tree.check_integrity()


@pytest.mark.parametrize("damage", ["device", "pinned", "host", "state", "reader"])
def test_books_of_both_memories_that_do_not_balance_are_told(damage):
    tree = tree_with((1, 2), (1, 2, 3), host_budget_bytes=100)
    leaf = tree.find(key((1, 2, 3)))
    tree.offload(leaf)
    if damage == "device":
        tree.device.nbytes += 1
    elif damage == "pinned":
        tree.device.pinned += 1
    elif damage == "host":
        tree.host.nbytes -= 1
    elif damage == "state":
        tree.offload(leaf.parent)
        tree.host.remove(leaf)
        leaf.state, leaf.payload = "device", FakeKV.of((3,))
        tree.device.add(leaf)
        tree.num_bytes += leaf.payload.nbytes
    else:
        leaf.parent.readers = leaf.readers = 1
    with pytest.raises(RuntimeError):
        tree.check_integrity()


# -- engines without a model ---------------------------------------------------------------------------------------
def test_a_simulated_engine_evicts_offloads_restores_and_answers_the_same():
    asks = [
        BranchRequest(str(i), (tuple(b"%d is a problem" % ((i // 4 * 2 + i % 2) % 6)),), (i, -i), StepRule(40))
        for i in range(28)
    ]
    free = SimulatedEngine()
    small = SimulatedEngine(kv_budget_bytes=100 * 1024, host_budget_bytes=60 * 1024, eviction="omega")
    small.note_scores([(path_keys("simulated", asks[0].path)[0], 0.7, 0)])
    for ask in asks:
        assert small.expand([ask])[0].branches == free.expand([ask])[0].branches
        small.tree.check_integrity()
    stats = small.stats()
    assert stats["kv_peak_bytes"] <= 100 * 1024 and stats["kv_host_bytes"] <= 60 * 1024
    assert min(stats[name] for name in ("evicted", "offloaded", "restored", "recomputed_tokens")) > 0
    assert free.stats()["evicted"] == 0
