"""What every strategy of the registry promises, whatever its idea is."""

import json
import random
from hashlib import blake2b

import pytest

from engine.simulated import SimulatedEngine
from search.budget import Budget
from search.strategies import registry
from search.strategies.base import TreeStrategy
from search.tree import SearchTree
from search.types import ENDED, Outcome, Problem, Sample, Sampling, Verdict

NAMES = registry.names()
HINTS = ("", "be brief", "be exact")


def draw(*parts) -> int:
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=6).digest(), "big")


def reply(order, failing=False) -> Outcome:
    """A pure function of the order: steps, answers, blanks, cut samples, missing scores; errors if `failing`."""
    if failing and draw("fail", order.id) % 3 == 0:
        return Outcome(order.id, order.problem_id, order.node_id, error=f"engine broke on {order.id}")
    samples = []
    for i in range(order.first_sample, order.first_sample + order.n):
        kind = draw(order.node_id, i) % 8
        text = (
            f"Answer: {draw(order.node_id, i) % 3}"
            if kind < 2
            else ""
            if kind == 2
            else f"step {order.node_id}/{i}\n\n"
        )
        finish = "eos" if kind < 2 or (kind == 2 and draw(i) % 2) else "length" if kind == 3 else "step"
        score = None if kind == 4 else draw("score", order.node_id, i) % 101 / 100
        verdict = Verdict(score, "test", error=None if score is not None else "no idea") if text else None
        samples.append(Sample(text, tuple(text.encode()) or (256,), finish, i, verdict=verdict))
    return Outcome(order.id, order.problem_id, order.node_id, tuple(samples), f"e{draw(order.id) % 3}")


def tree_of(name: str, problem: str = "p") -> SearchTree:
    strategy = registry.create(name)
    return SearchTree(Problem("p", problem), {hint: (1, 2, *hint.encode()) for hint in HINTS}, Sampling(), 0), strategy


def play(name, *, capacity=16, shuffle=None, twice=False, failing=False, options=None):
    """Run to the end without a driver; returns the tree and the answer."""
    strategy = registry.create(name, **(options or {}))
    tree = SearchTree(Problem("p", "p"), {hint: (1, 2, *hint.encode()) for hint in HINTS}, Sampling(), 0)
    for _ in range(500):
        wave = strategy.ask(tree, capacity)
        assert len({order.id for order in wave}) == len(wave)
        if not wave:
            assert tree.in_flight == 0
            assert strategy.ask(tree, capacity) == []
            return tree, strategy.answer(tree)
        for order in wave:
            assert tree.node(order.node_id).status == "expanding"
            assert order.context == (tree.prompts[order.hint], *tree.context(tree.node(order.node_id))[1:])
        outcomes = [reply(order, failing) for order in wave]
        if shuffle is not None:
            shuffle.shuffle(outcomes)
        for outcome in outcomes:
            strategy.answer(tree)
            strategy.tell(tree, outcome)
            if twice:
                before = json.dumps(tree.to_json())
                strategy.tell(tree, outcome)
                assert json.dumps(tree.to_json()) == before
        if twice:
            strategy.tell(tree, reply(next(iter(tree.asked.values())), failing))
    raise AssertionError(f"{name} does not end")


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize("options", [{}, {"hints": ["", "be brief", "be exact"]}], ids=["plain", "hints"])
@pytest.mark.parametrize("name", NAMES)
def test_any_tell_order_of_a_wave_and_repeated_tells_give_the_same_tree(name, options, failing):
    tree, chosen = play(name, failing=failing, options=options)
    exported = tree.to_json()
    assert len(tree) > 1
    for seed in range(6):
        other, selection = play(
            name, shuffle=random.Random(seed), twice=seed % 2 == 0, failing=failing, options=options
        )
        assert other.to_json() == exported
        assert selection == chosen


@pytest.mark.parametrize("capacity", [1, 2, 16])
@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_tree_is_valid_at_any_capacity_and_failures_are_tolerated(name, failing, capacity):
    tree, chosen = play(name, capacity=capacity, failing=failing)
    exported = json.loads(json.dumps(tree.to_json()))["nodes"]
    assert [node["id"] for node in exported] == sorted(
        (node.id for node in tree.nodes()), key=lambda i: (i.count("."), [int(part) for part in i.split(".")[1:]])
    )
    assert tree.told == set(tree.asked)
    for node in tree.nodes():
        children = tree.children(node)
        assert node.in_flight == 0
        assert node.status != "expanding"
        assert node.open_leaves == int(node.expandable) + sum(child.open_leaves for child in children)
        assert [child.index for child in children] == sorted({child.index for child in children})
        assert not children or node.status == "expanded"
        assert node.thought.text.strip() or node.parent is None
        assert node.thought.finish not in ENDED or node.complete
        assert node.status != "dead" or node.reason
    if chosen.node_id is not None:
        assert tree.node(chosen.node_id).complete == chosen.complete or not chosen.complete
    assert chosen.complete == (chosen.answer is not None and bool(tree.complete()))


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_can_be_asked_for_at_any_time(name):
    tree, strategy = tree_of(name)
    assert strategy.answer(tree).answer is None
    assert strategy.answer(tree).reason in ("no_answer", "done")
    strategy.ask(tree, 4)
    assert strategy.answer(tree).answer is None


@pytest.mark.parametrize("name", NAMES)
def test_all_expansions_failing_end_the_search(name):
    tree, strategy = tree_of(name)
    for _ in range(50):
        wave = strategy.ask(tree, 16)
        for order in wave:
            strategy.tell(tree, Outcome(order.id, order.problem_id, order.node_id, error=f"broke {order.first_sample}"))
        if not wave:
            break
    assert strategy.ask(tree, 16) == [] and tree.in_flight == 0
    assert (tree.root.status, tree.root.reason) == ("dead", "broke 0")
    assert strategy.answer(tree).reason == "no_answer"


@pytest.mark.parametrize("name", NAMES)
def test_a_withdrawn_order_leaves_no_trace(name):
    tree, strategy = tree_of(name)
    wave = strategy.ask(tree, 16)
    for order in wave:
        tree.withdraw(order)
    assert (tree.in_flight, tree.root.status, tree.root.open_leaves) == (0, "open", 1)
    assert not tree.asked
    assert [order.node_id for order in strategy.ask(tree, 16)] == [order.node_id for order in wave]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("limit", ["tokens", "expansions", "nodes"])
def test_budgets_bind(lab, name, limit):
    amount = {"tokens": 20, "expansions": 2, "nodes": 2}[limit]
    found = lab(SimulatedEngine(depth=9)).solve(name, budget=Budget(**{limit: amount}))
    used = {"tokens": found.cost.generated, "expansions": len(found.tree.asked), "nodes": len(found.tree) - 1}
    assert used[limit] == amount
    assert found.stop_reason == limit
    assert found.unused[limit] == 0


@pytest.mark.parametrize("name", NAMES)
def test_seeds_reproduce(lab, plain, name):
    first, again, other = (lab(SimulatedEngine(depth=5)).solve(name, seed=seed) for seed in (3, 3, 4))
    assert plain(first) == plain(again)
    assert plain(first) != plain(other)
    assert (first.answer, first.text, first.votes, first.unused) == (
        again.answer,
        again.text,
        again.votes,
        again.unused,
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_result_is_one_json_object(lab, name):
    found = lab(SimulatedEngine()).solve(name)
    row = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert row["id"] == found.problem.id and row["strategy"] == name
    assert len(row["tree"]["nodes"]) == len(found.tree)
    assert row["complete"] is True and row["node"] in {node["id"] for node in row["tree"]["nodes"]}


def test_a_strategy_of_ones_own_gets_all_of_it(lab):
    @registry.register
    class Once(TreeStrategy):
        name = "once-for-the-contract"

        def ask(self, tree, capacity):
            return [] if tree.asked else [tree.expansion(tree.root, 2)]

    try:
        assert "once-for-the-contract" in registry.names()
        found = lab(SimulatedEngine(depth=2)).solve("once-for-the-contract")
        assert found.tree.root.status == "expanded" and found.cost.verified > 0
    finally:
        registry._REGISTERED.pop("once-for-the-contract")
