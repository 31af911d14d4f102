"""The controller's own work: the same for each of 5,000 nodes, for every strategy."""

import random

import pytest

from search.strategies import registry
from search.tree import SearchTree
from search.types import Outcome, Problem, Sample, Sampling, Verdict
from tests.search.calls import Calls

LARGE = {
    "ab_mcts": {"simulations": 2500, "k": 2, "max_depth": 30},
    "beam": {"n": 256, "m": 4, "max_depth": 20},
    "best_of_n": {"samples": 5000, "wave": 16},
    "dvts": {"n": 256, "m": 4, "max_depth": 20},
    "greedy": {"max_depth": 1000},
    "mcts": {"simulations": 2500, "max_depth": 30},
    "rebase": {"n": 250, "max_depth": 20},
    "self_consistency": {"samples": 5000, "wave": 16, "stop_at": 1.0},
    "tot": {"b": 64, "k": 4, "max_depth": 25},
}
MORE = {
    "ab_mcts by steps": {"simulations": 2500, "k": 2, "unit": "step", "max_depth": 30},
    "mcts puct": {"simulations": 2500, "policy": "puct", "max_depth": 30},
    "mcts widening": {"simulations": 2500, "widen": 1.0, "max_depth": 30},
    "rebase ets": {"n": 32, "ets": True, "max_depth": 150},
    "tot dfs": {"order": "dfs", "k": 4, "max_depth": 7, "solutions": 9999},
}


def reply(order, rng, whole):
    samples = []
    for i in range(order.first_sample, order.first_sample + order.n):
        text = (
            f"Answer: {rng.randrange(3)}" if whole else f"step {rng.randrange(10**6)} at {order.node_id.count('.')}\n"
        )
        verdict = Verdict(rng.random() * 0.99, "test")
        samples.append(Sample(text, (1, 2, 3), "eos" if whole else "step", i, verdict=verdict))
    return Outcome(order.id, order.problem_id, order.node_id, tuple(samples), "engine")


@pytest.mark.parametrize("case", [*LARGE, *MORE])
def test_a_node_costs_few_calls(case):
    """Functions called, which no other program on the machine changes: a millisecond is about 10,000 of them, and
    `bench.overhead` measures seconds. A path of greedy's is as deep as it has nodes."""
    name, options = case.split()[0], {**LARGE, **MORE}[case]
    strategy, rng = registry.create(name, **options), random.Random(3)
    tree = SearchTree(Problem("p", "p"), {"": (1, 2, 3)}, Sampling())
    whole = name in ("self_consistency", "best_of_n") or case == "ab_mcts"
    most, calls = 300 if name == "greedy" else 1000, Calls()
    while len(tree) <= most:
        with calls:
            orders = strategy.ask(tree, 16)
        if not orders:
            break
        outcomes = [reply(order, rng, whole) for order in orders]
        with calls:
            for outcome in outcomes:
                strategy.tell(tree, outcome)
    with calls:
        selection = strategy.answer(tree)
    assert selection.node_id is not None
    assert len(tree) > most
    assert calls.count / len(tree) < 4000
