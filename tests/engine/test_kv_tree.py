"""KV tree: radix tree of token segments, checked against a dictionary of everything that was put in."""

import pytest

from engine.base import KVEvent, path_keys
from engine.kv_tree import KVTree
from engine.text_engine import CountedKV

PRINT = "model"
BYTES = 10


def kv(start, stop):
    return CountedKV(stop - start, BYTES)


def key(tokens):
    """Key of the prefix `tokens`."""
    return path_keys(PRINT, ((*tokens, 0),))[0]


def tree_with(*paths, budget_bytes=None):
    tree = KVTree(PRINT, budget_bytes)
    for path in paths:
        tree.insert(path, kv)
    return tree


def held(tree, tokens):
    return tree.match(tokens).length


def test_an_empty_tree_holds_nothing():
    tree = KVTree(PRINT)
    assert held(tree, (1, 2)) == held(tree, ()) == 0
    assert tree.insert((), kv) is tree.root
    assert (tree.num_tokens, tree.events(), tree.snapshot()) == (0, [], [])
    tree.check_integrity()


def test_insert_asks_only_for_what_is_not_held():
    cuts = []

    def cut(start, stop):
        cuts.append((start, stop))
        return kv(start, stop)

    tree = KVTree(PRINT)
    tree.insert((1, 2, 3), cut)
    tree.insert((1, 2, 3, 4, 5), cut)
    tree.insert((1, 2, 9), cut)
    tree.insert((1, 2), cut)
    assert cuts == [(0, 3), (3, 5), (2, 3)]
    assert (tree.num_tokens, tree.num_bytes) == (6, 60)
    tree.check_integrity()


def test_a_split_keeps_keys_and_ends():
    tree = tree_with((1, 2, 3, 4))
    lower = tree.match((1, 2, 3, 4)).segments[-1]
    upper = tree.insert((1, 2), kv)
    assert (upper.end, upper.key, upper.tokens) == (2, key((1, 2)), (1, 2))
    assert (lower.start, lower.end, lower.key, lower.tokens) == (2, 4, key((1, 2, 3, 4)), (3, 4))
    assert lower.parent is upper and upper.parent is tree.root
    assert (upper.payload.nbytes, lower.payload.nbytes) == (20, 20)
    tree.check_integrity()


@pytest.mark.parametrize("kind", [tuple, list])
def test_tokens_may_be_any_sequence(kind):
    tree = tree_with(kind((1, 2, 3)))
    assert held(tree, kind((1, 2, 3))) == 3
    assert held(tree, kind((1, 2, 4))) == 2
    assert held(tree, kind((1, 2))) == 2
    tree.insert(kind((1, 2, 4)), kv)
    assert held(tree, kind((1, 2, 4, 5))) == 3
    tree.check_integrity()


def test_match_tells_whole_segments_from_a_partial_one():
    tree = tree_with((1, 2, 3), (1, 2, 3, 4, 5))
    match = tree.match((1, 2, 3, 4, 9))
    assert [segment.tokens for segment in match.segments] == [(1, 2, 3)]
    assert (match.partial.tokens, match.length) == ((4, 5), 4)


def test_release_drops_the_branch_and_nothing_else():
    tree = tree_with((1, 2, 3), (1, 2, 3, 4), (1, 2, 3, 5), (9,))
    tree.release(key((1, 2, 3)))
    assert (held(tree, (1, 2, 3)), held(tree, (9,)), tree.num_tokens) == (0, 1, 1)
    tree.release(key((1, 2, 3)))
    tree.release(b"unknown")
    tree.check_integrity()


def test_release_takes_along_what_only_led_there():
    """(1, 2) begins all, (1, 2, 3) is where two part; both were never asked for. (1, 2, 4) was."""
    tree = tree_with((1, 2, 3, 5), (1, 2, 3, 6), (1, 2, 4, 7))
    tree_with_end = tree.insert((1, 2, 4), lambda start, stop: pytest.fail("held already"))
    assert (tree.num_tokens, tree_with_end.end) == (7, 3)
    tree.release(key((1, 2, 3, 5)))
    assert held(tree, (1, 2, 3)) == 3
    tree.release(key((1, 2, 3, 6)))
    assert (held(tree, (1, 2, 3)), tree.num_tokens) == (2, 4)
    tree.release(key((1, 2, 4, 7)))
    assert held(tree, (1, 2, 4)) == 3
    tree.release(key((1, 2, 4)))
    assert tree.num_tokens == 2  # the template of all prompts stays
    tree.check_integrity()


def test_release_spares_what_a_reader_holds():
    tree = tree_with((1, 2), (1, 2, 3), (1, 2, 4))
    reader = tree.match((1, 2, 3)).segments[-1]
    tree.pin(reader)
    tree.release(key((1, 2)))
    assert (held(tree, (1, 2, 3)), held(tree, (1, 2, 4))) == (3, 2)
    tree.unpin(reader)
    tree.release(key((1, 2)))
    assert tree.num_tokens == 0
    tree.check_integrity()


def test_a_split_below_a_reader_keeps_it_pinned():
    tree = tree_with((1, 2, 3, 4), budget_bytes=0)
    reader = tree.match((1, 2, 3, 4)).segments[-1]
    tree.pin(reader)
    tree.insert((1, 2, 8), kv)
    tree.enforce_budget()
    assert (held(tree, (1, 2, 3, 4)), held(tree, (1, 2, 8))) == (4, 2)
    tree.check_integrity()
    tree.unpin(reader)
    tree.enforce_budget()
    assert (tree.num_tokens, tree.num_evicted) == (0, 3)
    tree.check_integrity()


def test_eviction_takes_whole_chains_without_visiting_one_twice():
    tree = tree_with((1,), (1, 2), (1, 2, 3), (5, 6), budget_bytes=20)
    held(tree, (5, 6))
    tree.enforce_budget()
    assert (held(tree, (1, 2, 3)), held(tree, (5, 6)), tree.num_evicted) == (0, 2, 3)
    tree.check_integrity()


def test_eviction_is_least_recent_use_of_leaves():
    """The trunk (1,) was used last; dropping its old leaf must not take it along before the older (5,)."""
    tree = tree_with((1,), (1, 2), (5,), budget_bytes=20)
    held(tree, (5,))
    held(tree, (1,))
    tree.enforce_budget()
    assert (held(tree, (1, 2)), held(tree, (5,))) == (1, 1)
    tree.budget_bytes = 10
    tree.match((1,))
    tree.enforce_budget()
    assert (held(tree, (1,)), held(tree, (5,))) == (1, 0)


def test_a_zero_budget_keeps_nothing_and_none_keeps_all():
    for budget, left in ((0, 0), (None, 3)):
        tree = tree_with((1, 2), (1, 3), budget_bytes=budget)
        tree.enforce_budget()
        assert tree.num_tokens == left
        tree.check_integrity()


def test_keys_depend_on_the_model_and_on_all_tokens_before():
    other = KVTree("other model")
    assert other.insert((1, 2), kv).key != tree_with((1, 2)).match((1, 2)).segments[-1].key
    assert key((1, 2)) != key((2, 1)) != key((2, 1, 0))
    tree = tree_with((7, 1, 2), (8, 1, 2))
    keys = [segment.key for segment in tree.segments()]
    assert len(set(keys)) == 2


def test_events_name_prefixes_parents_and_ends():
    tree = tree_with((1, 2, 3))
    tree.insert((1, 2, 4), kv)
    root = tree.root.key
    assert tree.events() == [
        KVEvent("add", key((1, 2, 3)), key((1, 2)), 3),
        KVEvent("add", key((1, 2)), root, 2),
        KVEvent("add", key((1, 2, 4)), key((1, 2)), 3),
    ]
    tree.release(key((1, 2, 4)))
    assert tree.events() == [KVEvent("drop", key((1, 2, 4)))]
    assert tree.events() == []
    assert tree.snapshot() == [KVEvent("add", key((1, 2)), root, 2), KVEvent("add", key((1, 2, 3)), key((1, 2)), 3)]


def test_a_split_tells_the_new_parent_of_what_is_below():
    tree = tree_with((1, 2, 3))
    tree.events()
    upper = tree.reach((1, 2))
    assert tree.events() == [
        KVEvent("add", upper.key, tree.root.key, 2),
        KVEvent("add", key((1, 2, 3)), upper.key, 3),
    ]


@pytest.mark.parametrize("told", [True, False])
def test_the_drop_of_a_split_segment_is_told_to_who_may_know_it(told):
    tree = tree_with((1, 2, 3))
    if told:
        tree.events()
    tree.reach((1, 2))
    tree.release(key((1, 2, 3)))
    drops = [KVEvent("drop", key((1, 2, 3)))] if told else []
    assert tree.events() == [KVEvent("add", key((1, 2)), tree.root.key, 2), *drops]


@pytest.mark.parametrize("damage", ["tokens", "bytes", "readers", "link", "key", "unpinned twice"])
def test_books_that_do_not_balance_are_told(damage):
    tree = tree_with((1, 2), (1, 2, 3))
    leaf = tree.match((1, 2, 3)).segments[-1]
    if damage == "tokens":
        tree.num_tokens += 1
    elif damage == "bytes":
        tree.num_bytes -= 1
    elif damage == "readers":
        leaf.readers += 1
    elif damage == "link":
        leaf.start += 1
    elif damage == "key":
        leaf.tokens = (4,)
        leaf.parent.children = {4: leaf}
    else:
        tree.unpin(leaf)
    with pytest.raises(RuntimeError):
        tree.check_integrity()
