"""Policies by name, what each of them does, and all of them on one trace (case 58)."""

import asyncio
from collections import Counter

import pytest

from actors.dispatcher import PoolOptions
from actors.placement import Branch, Load, Wave
from actors.policies import registry
from orchestrator.config import Config, UsageError
from tests.actors.virtual import cluster, grow, prompt, run


def wave(loads=None, held=None, seed=0):
    loads = loads or {name: Load() for name in "abc"}
    return Wave(sorted(loads), loads, lambda key: frozenset((held or {}).get(key, "")), rows_per_engine=4, seed=seed)


def branches(count, keys=(b"root",), ends=(50,), avoid=()):
    return [Branch(f"b{i}", keys, ends, 2, 20, avoid) for i in range(count)]


def actors(policy, one, asked, tree="t"):
    return [placed.actor for placed in policy.place(tree, one, asked)]


def test_an_unknown_policy_names_the_choices():
    with pytest.raises(ValueError, match=r"did you mean 'sticky'.*choices: least_loaded, longest_match, random"):
        registry.create("stikcy")
    with pytest.raises(ValueError, match="unknown placement policy"):
        PoolOptions(placement="nearest")
    with pytest.raises(UsageError, match=r"placement='nearest'.*choices: least_loaded"):
        Config.create(placement="nearest")
    assert Config.create(placement="sticky").placement == "sticky"


@pytest.mark.parametrize("name", registry.names())
def test_every_policy_keeps_all_terms_and_avoids_what_it_should(name):
    policy = registry.create(name)
    placed = policy.place("t", wave(), branches(3, avoid=("a",)))
    assert [p.id for p in placed] == ["b0", "b1", "b2"] and {p.actor for p in placed} <= set("bc")
    assert all(p.policy == name and p.decode_s > 0 for p in placed)
    policy.end_tree("t")


def test_round_robin_takes_turns_over_trees():
    policy = registry.create("round_robin")
    assert actors(policy, wave(), branches(4)) == ["a", "b", "c", "a"]
    assert actors(policy, wave(), branches(2), "u") == ["b", "c"]


def test_random_follows_its_seed():
    policy = registry.create("random")
    first = actors(policy, wave(seed=1), branches(30))
    assert first == actors(policy, wave(seed=1), branches(30)) != actors(policy, wave(seed=2), branches(30))
    assert set(first) == set("abc")


def test_least_loaded_ignores_prefixes():
    loads = {"a": Load(rows=9), "b": Load(rows=3), "c": Load()}
    assert actors(registry.create("least_loaded"), wave(loads, {b"root": "a"}), branches(3)) == ["c", "c", "b"]


def test_sticky_keeps_a_tree_where_it_began_while_it_can():
    policy = registry.create("sticky")
    assert actors(policy, wave(), branches(3)) == ["a"] * 3
    assert actors(policy, wave(), branches(2), "u") == ["b"] * 2
    assert actors(policy, wave({"b": Load(), "c": Load()}), branches(2)) == ["c"] * 2
    policy.end_tree("t")
    policy.end_tree("u")
    assert actors(policy, wave(), branches(1), "v") == ["a"]


def test_longest_match_piles_up():
    policy = registry.create("longest_match")
    loads = {"a": Load(rows=99), "b": Load(), "c": Load()}
    asked = branches(3, (b"root", b"leaf"), (50, 90))
    assert actors(policy, wave(loads, {b"root": "ac", b"leaf": "a"}), asked) == ["a"] * 3
    assert actors(policy, wave(loads, {b"root": "ac"}), asked) == ["c"] * 3
    assert actors(policy, wave(), branches(3)) == ["a"] * 3


def trace(policy, trees=12, engines=4):
    """Reused and prefilled tokens, makespan and the most tokens that one engine prefilled and generated."""

    async def main(clock):
        pool = cluster(clock, engines, step=60, options=PoolOptions(rows_per_engine=8, placement=policy))
        found = []
        for number in range(trees):
            found.append(grow(pool, f"p{number}", prompt(f"p{number}", 1500), beam=2, branching=4, depth=4, step=60))
        outcomes = [outcome for _, tree in await asyncio.gather(*found) for outcome in tree]
        pool.check_integrity()
        loads = Counter()
        for outcome in outcomes:
            loads[outcome.engine] += outcome.cost.prefilled + outcome.cost.generated
        prefilled = sum(o.cost.prefilled for o in outcomes)
        return prefilled, sum(o.cost.reused["exact"] for o in outcomes), clock(), max(loads.values())

    return run(main)


def test_case_58_policies_on_one_trace():
    """`rsbcm` reuses nearly as much as trees that never move and is as fast as any; others lose one or the other."""
    rows = {policy: trace(policy) for policy in registry.names()}
    prefilled, _, makespan_s, most = rows["rsbcm"]
    fastest = min(row[2] for row in rows.values())
    assert makespan_s <= 1.05 * fastest
    assert all(prefilled <= 1.01 * row[0] for row in rows.values() if row[2] <= 1.05 * fastest)
    assert prefilled <= 1.25 * rows["sticky"][0]
    for spread in ("round_robin", "random", "least_loaded"):
        assert rows[spread][0] > 1.5 * prefilled
        assert rows[spread][1] < rows["rsbcm"][1]
    assert most <= 1.25 * min(row[3] for row in rows.values())
