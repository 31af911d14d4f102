"""An engine follows proposals of the index only as far as its own books allow."""

import pytest

from engine.base import Evicting, path_keys
from engine.eviction import policy
from engine.kv_tree import KVTree
from engine.plain import PlainEngine
from engine.proposals import follow, pressure
from engine.scripted import ScriptedEngine
from tests.engine.fake_kv import BYTES, store


def key(tokens):
    return path_keys("model", ((*tokens, 0),))[0]


@pytest.fixture
def tree():
    """(1, 2) with leaves (1, 2, 3, 3) and (1, 2, 4), and (9,)."""
    tree = KVTree("model", 100 * BYTES, policy=policy("omega"))
    for tokens in ((1, 2, 3, 3), (1, 2, 4), (9,)):
        store(tree, tokens, None)
    tree.events()
    yield tree
    tree.check_integrity()


def test_leaves_go_in_order_and_the_index_hears_of_it(tree):
    assert follow(tree, [key((1, 2, 4)), key((1, 2, 3, 3)), key((1, 2))]) == []
    assert [event.op for event in tree.events()] == ["drop"] * 3
    assert tree.num_tokens == 1 and tree.num_evicted == 3


def test_what_has_readers_or_something_below_it_stays(tree):
    reader = tree.reach((1, 2, 4))
    tree.pin(reader)
    refused = [key((1, 2, 4)), key((1, 2))]
    assert follow(tree, [key((1, 2, 4)), key((1, 2)), key((1, 2, 3, 3)), key((7, 7))]) == refused
    assert [event.key for event in tree.events()] == [key((1, 2, 3, 3))]
    tree.unpin(reader)
    assert follow(tree, refused) == []


def test_a_segment_goes_to_the_host_where_there_is_room_and_is_not_asked_for_twice(tree):
    tree.host_budget_bytes = 2 * BYTES
    assert follow(tree, [key((1, 2, 3, 3))]) == [] and tree.events() == []
    assert tree.find(key((1, 2, 3, 3))).state == "host"
    assert follow(tree, [key((1, 2, 3, 3))]) == [key((1, 2, 3, 3))]


@pytest.mark.parametrize(("budget", "name"), [(None, "omega"), (0, "omega"), (50, "lru"), (50, "value")])
def test_only_an_engine_with_a_budget_and_the_policy_omega_takes_proposals(budget, name):
    assert pressure(KVTree("model", budget, policy=policy(name)), BYTES) is None


def test_pressure_is_what_is_used_of_how_much(tree):
    assert pressure(tree, BYTES) == (6 * BYTES, 100 * BYTES, BYTES)


def test_engines_that_hold_kv_take_proposals_and_others_do_not():
    engine = ScriptedEngine(["x"], kv_budget_bytes=1 << 20, eviction="omega", bytes_per_token=8)
    assert isinstance(engine, Evicting) and engine.pressure() == (0, 1 << 20, 8)
    assert not isinstance(PlainEngine, Evicting)
