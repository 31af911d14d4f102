"""Prefix reuse of whole searches: what is prefilled, and whether the placement's prediction came true."""

from dataclasses import replace

import pytest

from actors.dispatcher import PoolOptions
from engine.base import flat
from engine.simulated import SimulatedEngine
from search.types import Outcome

ROWS = PoolOptions(rows_per_engine=4)


def watched(lab, engines, name="tot", **options):
    """A search and each of its outcomes."""
    one = lab(*(SimulatedEngine(depth=6) for _ in range(engines)), options=ROWS)
    one.pool.flow.options = replace(one.pool.flow.options, moves=False)  # moves wait for real moments of idleness
    outcomes: dict[str, Outcome] = {}
    inner = one.pool.expand

    async def expand(wave):
        found = await inner(wave)
        outcomes.update((outcome.expansion_id, outcome) for outcome in found)
        return found

    one.pool.expand = expand
    return one.solve(name, options=options), outcomes


def distinct_tokens(tree):
    prefixes = set()
    for node in tree.nodes():
        path = flat(tree.context(node))
        prefixes.update(path[: i + 1] for i in range(len(path)))
    return len(prefixes)


@pytest.mark.parametrize("options", [{"b": 2, "k": 3}, {"b": 4, "k": 4}, {"order": "dfs", "solutions": 3}])
def test_a_search_on_one_engine_prefills_each_token_once(lab, options):
    found, outcomes = watched(lab, 1, max_depth=3, **options)
    prefilled = sum(outcome.cost.prefilled for outcome in outcomes.values())
    assert max(node.depth for node in found.tree.nodes()) == 3
    assert prefilled <= 1.1 * distinct_tokens(found.tree)
    for order in found.tree.asked.values():
        cost = outcomes[order.id].cost
        if order.node_id == "r":
            assert cost.prefilled == len(order.context[0]) - 1
        else:
            assert cost.prefilled == 0
            assert cost.actual_hit == len(flat(order.context)) - 1


@pytest.mark.parametrize("name", ["tot", "mcts"])
def test_a_child_of_a_node_grown_on_the_same_engine_prefills_nothing(lab, name):
    options = {"b": 6, "k": 3} if name == "tot" else {"simulations": 24, "k": 3, "leaves": 6}
    found, outcomes = watched(lab, 2, name, max_depth=3, **options)
    same = elsewhere = 0
    for order in found.tree.asked.values():
        node, outcome = found.tree.node(order.node_id), outcomes[order.id]
        if node.depth and outcome.engine == node.engine:
            same += 1
            assert outcome.cost.prefilled == 0
        elif node.depth:
            elsewhere += 1
            assert outcome.cost.prefilled <= len(flat(order.context)) - 1
    assert same > 0 and elsewhere > 0
    assert {outcome.engine for outcome in outcomes.values()} == {"engine-0", "engine-1"}


@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.parametrize("name", ["tot", "mcts"])
def test_the_predicted_hit_is_the_actual_hit_where_the_path_is_held(lab, name, engines):
    options = {"b": 6, "k": 3} if name == "tot" else {"simulations": 24, "k": 3, "leaves": 6}
    found, outcomes = watched(lab, engines, name, max_depth=3, **options)
    known = 0
    for order in found.tree.asked.values():
        cost = outcomes[order.id].cost
        assert cost.predicted_hit <= cost.actual_hit
        if cost.predicted_hit == len(flat(order.context)) - 1:
            known += 1
            assert cost.actual_hit == cost.predicted_hit
    below = [order for order in found.tree.asked.values() if order.node_id != "r"]
    assert known == len(below) if engines == 1 else known >= len(below) // 2
    assert found.cost.predicted_hit == sum(outcome.cost.predicted_hit for outcome in outcomes.values())


def test_problems_under_way_share_the_system_prompt_and_leave_nothing_private_behind(lab):
    one = lab(SimulatedEngine(depth=3))
    first, second = one.solve_all("greedy", ["What is 1 + 1?", "How many legs has a spider?"])
    prompts = [found.tree.prompts[""] for found in (first, second)]
    shared = next(i for i in range(len(prompts[0])) if prompts[0][i] != prompts[1][i])
    assert first.cost.prefilled == len(prompts[0]) - 1
    assert second.cost.prefilled == len(prompts[1]) - 1 - shared
    assert one.engines[0].tree.num_tokens <= shared


def test_without_a_kv_budget_nothing_is_reused_between_calls_and_the_tree_is_the_same(lab, plain):
    none = lab(SimulatedEngine(depth=5, kv_budget_bytes=0))
    tight = lab(SimulatedEngine(depth=5, kv_budget_bytes=700 * 1024))
    free = lab(SimulatedEngine(depth=5))
    results = [one.solve("tot") for one in (none, tight, free)]
    assert none.engines[0].tree.num_tokens == 0
    assert tight.engines[0].tree.num_bytes <= 700 * 1024
    assert plain(results[0]) == plain(results[1]) == plain(results[2])
    assert results[0].cost.prefilled > results[2].cost.prefilled
