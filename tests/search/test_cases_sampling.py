"""Cases of sampling and routing: same seed on any number of engines, distinct streams, replies out of order."""

import asyncio
import random
import re

import pytest

from actors.dispatcher import PoolOptions
from actors.handles import InlineEngine
from engine.simulated import SimulatedEngine
from engine.text_engine import TextEngine
from search.strategies import registry
from search.types import Problem

PROBLEMS = [f"What is {n} * {n + 1}?" for n in range(5)]
ALL = registry.names()


class EchoEngine(TextEngine):
    """Says which problem it was asked."""

    def __init__(self):
        super().__init__(fingerprint="simulated")
        self.seen = []

    def write(self, path, stream):
        asked = re.search(r"problem-(\d+)", path[0])
        self.seen.append(asked[1])
        return (
            f"Answer: {asked[1]}"
            if len(path) > 1
            else f"This is problem-{asked[1]}, try {stream}.\n\nAnswer: {asked[1]}"
        )

    def judge(self, path, question):
        return 0.5


class SlowestFirst(InlineEngine):
    """Answers later calls first, and tears calls apart."""

    calls = 0

    async def expand(self, orders, token):
        type(self).calls += 1
        for _ in range(40 - type(self).calls % 40):
            await asyncio.sleep(0)
        found = {}
        for order in random.Random(type(self).calls).sample(list(orders), len(orders)):
            found[order.id] = (await super().expand([order], token))[0]
            await asyncio.sleep(0)
        return [found[order.id] for order in orders]


@pytest.mark.parametrize("name", [name for name in ALL if name != "greedy"])
def test_case_14_every_completion_sits_in_its_own_tree(lab, name):
    mixed = PoolOptions(rows_per_engine=1, placement="round_robin")
    one = lab(EchoEngine(), EchoEngine(), handle=SlowestFirst, options=mixed)
    options = {
        "ab_mcts": {"simulations": 12},
        "beam": {"n": 4, "m": 2},
        "best_of_n": {"samples": 4},
        "dvts": {"n": 4, "m": 2},
        "mcts": {"k": 4},
        "rebase": {"n": 4},
        "self_consistency": {"samples": 4, "stop": "none"},
        "tot": {"k": 4},
    }[name]
    problems = [Problem(f"problem-{n}", f"id-{n}") for n in (11, 22, 33)]
    results = one.solve_all(name, problems, options=options)
    for problem, found in zip(problems, results, strict=True):
        asked = problem.text.removeprefix("problem-")
        assert found.problem is problem
        assert found.answer == asked
        assert len(found.tree.children(found.tree.root)) == 4 or name == "ab_mcts"
        for node in found.tree.nodes():
            assert set(re.findall(r"problem-(\d+)", node.thought.text)) <= {asked}
        assert {order.problem_id for order in found.tree.asked.values()} == {problem.id}
    assert all(len(set(engine.seen)) > 1 for engine in one.engines)


@pytest.mark.parametrize("name", ALL)
def test_case_74_same_seed_on_any_number_of_engines_in_any_problem_order(lab, plain, name):
    def trees(engines, order):
        one = lab(*(SimulatedEngine(depth=5) for _ in range(engines)), options=PoolOptions(rows_per_engine=1))
        results = one.solve_all(name, [PROBLEMS[i] for i in order], seed=7)
        used = {node.engine for found in results for node in found.tree.nodes()} - {""}
        assert len(used) >= min(engines, 2)
        return {
            found.problem.text: (plain(found), found.answer, found.text, found.votes, found.stop_reason)
            for found in results
        }

    base = trees(1, range(5))
    if name in ("tot", "mcts"):
        assert all(node["score"] is not None for nodes, *_ in base.values() for node in nodes[1:])
    assert trees(2, (3, 1, 4, 0, 2)) == base
    assert trees(4, (4, 3, 2, 1, 0)) == base
    assert trees(4, (2, 0, 1, 4, 3)) == base


def test_case_74_out_of_order_replies_give_the_same_trees(lab, plain):
    def trees(handle):
        one = lab(*(SimulatedEngine(depth=5) for _ in range(3)), handle=handle, options=PoolOptions(rows_per_engine=1))
        return [plain(found) for found in one.solve_all("mcts", PROBLEMS, options={"leaves": 6, "simulations": 20})]

    assert trees(SlowestFirst) == trees(InlineEngine)


def test_case_75_eight_samples_are_distinct_and_the_same_next_time(lab):
    def texts(**more):
        found = lab(SimulatedEngine(depth=6)).solve(
            "self_consistency", options={"samples": 8, "stop": "none", "wave": 8, **more}
        )
        return [node.thought.text for node in found.tree.nodes()][1:]

    first = texts()
    assert len(set(first)) == 8
    assert texts() == first
    assert texts(wave=3) == first


def test_case_75_samples_of_one_order_are_distinct(lab):
    found = lab(SimulatedEngine(depth=9)).solve("tot", options={"k": 8, "b": 1, "max_depth": 1})
    texts = [node.thought.text for node in found.tree.nodes()][1:]
    assert len(set(texts)) == len(texts) == 8
