"""Cases of Monte Carlo tree search: descent, depth, single expansion, exhaustion, leaves in flight, speed."""

import inspect
import math
import random
import sys
import time

import pytest

from engine.scripted import ScriptedEngine
from engine.simulated import SimulatedEngine
from engine.text_engine import Latency
from search.strategies import registry
from search.types import Sample, Verdict


def endless(path, served):
    """A step that no other sample repeats, and never an answer."""
    return f"Thought {'abcdefghij'[served]} at level {'abcdefghijklmnop'[len(path)]}.\n\n"


def test_case_01_selection_descends_level_by_level_along_the_hand_computed_path(bench):
    """The best grandchild (1.0) hides below the poorer child: Q alone, one level at a time, decides."""
    b = bench("mcts", c=0.5, k=2, simulations=50, max_depth=5, leaves=1)
    (order,) = b.ask()
    b.tell(order, ("left ", 0.2), ("right ", 0.6))
    (order,) = b.ask()
    assert order.node_id == "r.1"
    b.tell(order, ("a ", 0.5), ("b ", 0.4))
    # root N=4; left N=1, Q=0.2, bonus .5*sqrt(2 ln 4 / 1) = .8326 -> 1.0326
    # right N=3, Q=(.6+.5+.4)/3=.5, bonus .5*sqrt(2 ln 4 / 3) = .4807 -> .9807: the unvisited left wins now
    assert 0.2 + 0.5 * math.sqrt(2 * math.log(4)) > 0.5 + 0.5 * math.sqrt(2 * math.log(4) / 3)
    (order,) = b.ask()
    assert order.node_id == "r.0"
    b.tell(order, ("c ", 1.0), ("d ", 0.0))
    # root N=6; left N=3, Q=(.2+1+0)/3=.4; right N=3, Q=.5: equal bonuses, right wins, though left holds the 1.0
    # below right: a N=1 Q=.5, b N=1 Q=.4: a
    (order,) = b.ask()
    assert order.node_id == "r.1.0"
    b.tell(order, ("e ", 0.0), ("f ", 0.0))
    # root N=8; left N=3 Q=.4 -> .4 + .5*sqrt(2 ln 8/3) = .9887; right N=5 Q=.3 -> .3 + .5*sqrt(2 ln 8/5) = .7560
    # below left: c N=1 Q=1, d N=1 Q=0: c
    (order,) = b.ask()
    assert order.node_id == "r.0.0"
    tree = b.tree
    assert (tree.root.visits, tree.node("r.0").visits, tree.node("r.1").visits) == (8, 3, 5)
    assert tree.node("r.1").mean_value == pytest.approx(0.3)


def test_case_01_a_branch_in_flight_counts_as_visited(bench):
    b = bench("mcts", c=1.0, k=2, simulations=50, leaves=2)
    (order,) = b.ask()
    b.tell(order, ("left ", 0.5), ("right ", 0.5))
    assert [order.node_id for order in b.ask()] == ["r.0", "r.1"]


def test_case_02_thirty_iterations_reach_depth_four(lab):
    found = lab(ScriptedEngine(endless)).solve(
        "mcts", verifier=lambda p, t: 0.5, options={"simulations": 30, "k": 2, "max_depth": 4, "leaves": 1}
    )
    assert max(node.depth for node in found.tree.nodes()) == 4


def test_case_02_a_deep_tree_needs_no_recursion(bench):
    depth, limit = 400, sys.getrecursionlimit()
    b = bench("mcts", k=1, simulations=depth, max_depth=depth + 1, leaves=1)
    sys.setrecursionlimit(len(inspect.stack()) + 150)
    try:
        for _ in range(depth):
            b.tell(b.ask()[0], ("on ", 0.5))
        assert b.ask() == []
        assert b.strategy.answer(b.tree).unused == {"simulations": 0}
        assert b.tree.to_json()["nodes"][-1]["depth"] == depth
    finally:
        sys.setrecursionlimit(limit)


def test_case_03_each_node_is_expanded_once_and_calls_stay_below_the_formula(lab):
    simulations, k = 32, 3
    one = lab(ScriptedEngine(endless))
    found = one.solve("mcts", options={"simulations": simulations, "k": k, "max_depth": 8})
    expanded = [order.node_id for order in found.tree.asked.values()]
    assert len(expanded) == len(set(expanded)) == simulations
    assert one.count("expansions") == simulations
    assert 0 < one.count("calls") <= simulations
    assert 0 < one.count("score_calls") <= simulations
    assert len(found.tree) - 1 <= simulations * k


def test_case_04_a_single_path_is_exhausted_and_the_rest_of_the_budget_reported(lab):
    one = lab(ScriptedEngine(endless))
    found = one.solve("mcts", options={"k": 1, "max_depth": 10, "simulations": 50})
    assert found.stop_reason == "exhausted"
    assert one.count("expansions") == 10
    assert found.unused == {"simulations": 40}
    assert found.complete is False and found.text.startswith("Thought a")


def test_case_07_all_children_terminal_stops_early_with_each_verified_once(lab):
    asked = []
    one = lab(ScriptedEngine(["Answer: 1", "Answer: 2", "Answer: 3"]))
    found = one.solve(
        "mcts",
        verifier=lambda problem, text: asked.append(text) or 0.5,
        options={"k": 3, "simulations": 20},
    )
    assert sorted(asked) == ["Answer: 1", "Answer: 2", "Answer: 3"]
    assert one.count("expansions") == 1
    assert (found.stop_reason, found.complete, found.unused) == ("exhausted", True, {"simulations": 19})


def test_case_07_a_solved_node_is_never_expanded_again(lab):
    def script(path, served):
        return "Answer: 42" if served == 0 else endless(path, served)

    found = lab(ScriptedEngine(script)).solve(
        "mcts", verifier=lambda p, t: 1.0 if "Answer" in t else 0.1, options={"k": 2, "simulations": 12, "max_depth": 9}
    )
    solved = {node.id for node in found.tree.complete()}
    assert len(solved) == 9
    assert not solved & {order.node_id for order in found.tree.asked.values()}


@pytest.mark.parametrize("name", ["ab_mcts", "beam", "best_of_n", "dvts", "rebase", "tot"])
def test_case_07_every_child_terminal_is_verified_once_and_ends_the_search(lab, name):
    asked = []
    one = lab(ScriptedEngine([f"Answer: {i}" for i in range(8)]))
    options = {"ab_mcts": {"simulations": 6, "max_depth": 1}, "best_of_n": {"accept": 0.5}}.get(name, {})
    found = one.solve(name, verifier=lambda problem, text: asked.append(text) or 0.5, options=options)
    assert len(asked) == len(set(asked)) == len(found.tree) - 1
    assert {order.node_id for order in found.tree.asked.values()} == {"r"}
    assert found.complete and all(node.status == "terminal" for node in found.tree.nodes() if node.depth)


@pytest.mark.parametrize("verdict", [0.0, None])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rebase", {}), ("rebase", {"ets": True}), ("beam", {"aggregate": "prod"}), ("tot", {"evaluate": "vote"}),
        ("dvts", {"choose": "vote"}), ("mcts", {"policy": "puct"}), ("mcts", {"policy": "puct", "prior": "logprob"}),
        ("ab_mcts", {}), ("best_of_n", {"choose": "vote"}), ("beam", {"aggregate": "sum_logprob", "choose": "vote"}),
    ],
)  # fmt: skip
def test_case_16_all_scores_zero_or_missing_divide_by_nothing(lab, name, options, verdict):
    def judge(problem, text):
        return 0.0 if verdict == 0.0 else math.nan

    engine = SimulatedEngine(depth=3)
    engine.judge = lambda path, question: 0.0
    found = lab(engine).solve(name, verifier=None if options.get("evaluate") == "vote" else judge, options=options)
    assert found.error is None and found.complete and found.answer is not None


@pytest.mark.parametrize("verdict", [0.0, None])
def test_case_16_no_score_and_all_scores_zero_divide_by_nothing(bench, verdict):
    b = bench("mcts", simulations=9, leaves=3, k=2)
    while orders := b.ask():
        for order in orders:
            b.tell(order, ("a ", verdict), ("b ", verdict))
    assert len(b.tree.asked) == 9
    assert b.tree.root.visits == len(b.tree) - 1


def test_a_child_without_a_score_is_worth_the_nearest_score_above(bench):
    b = bench("mcts", simulations=9, leaves=1, k=2)
    b.tell(b.ask()[0], ("a ", None), ("b ", 0.9))
    assert b.tree.node("r.0").mean_value == 0.5
    order = b.ask()[0]
    assert order.node_id == "r.1"
    b.tell(order, ("c ", None), ("d ", 0.0))
    assert b.tree.node("r.1.0").mean_value == pytest.approx(0.9)


def test_an_unscored_answer_does_not_outvote_scored_ones(bench):
    b = bench("mcts", k=3, simulations=1)
    b.tell(b.ask()[0], ("Answer: 1", None), ("Answer: 2", 0.6), ("Answer: 2", 0.8))
    chosen = b.strategy.answer(b.tree)
    assert chosen.answer == "2"
    assert chosen.votes == pytest.approx({"2": 1.4, "1": 0.7})


def latency_lab(lab, leaves):
    naps = []
    engine = SimulatedEngine(depth=8, latency=Latency(per_call_s=0.05), sleep=naps.append)
    options = {"simulations": 96, "k": 3, "max_depth": 8, "leaves": leaves}
    found = lab(engine).solve("mcts", verifier=lambda p, t: (len(t) % 7) / 7, options=options)
    return found, naps


def test_case_34_eight_leaves_in_flight_take_a_sixth_of_the_time(lab):
    sequential, one_by_one = latency_lab(lab, leaves=1)
    parallel, at_once = latency_lab(lab, leaves=8)
    assert len(sequential.tree.asked) == len(parallel.tree.asked) == len(one_by_one) == 96
    assert sum(at_once) <= sum(one_by_one) / 6
    for found in (sequential, parallel):
        tree = found.tree
        assert tree.in_flight == 0
        for node in tree.nodes():
            own = node.multiplicity if node.parent else 0
            assert node.visits == own + sum(child.visits for child in tree.children(node))


def test_case_34_any_order_of_replies_gives_a_valid_tree(bench):
    rng = random.Random(1)
    for _ in range(20):
        b = bench("mcts", simulations=60, leaves=8, k=2, max_depth=4)
        flying = []
        while True:
            flying += b.ask()
            assert len(flying) <= 8 and b.tree.in_flight == len(flying)
            if not flying:
                break
            order = flying.pop(rng.randrange(len(flying)))
            b.tell(order, *((f"{order.node_id} {i} ", rng.random()) for i in range(2)))
        tree = b.tree
        expanded = [o.node_id for o in tree.asked.values()]
        assert len(expanded) == len(set(expanded)) == 15
        assert tree.root.visits == len(tree) - 1 == 30
        assert tree.root.open_leaves == 0
        assert b.strategy.answer(tree).reason == "exhausted"


def test_counters_of_open_leaves_equal_a_walk(bench):
    rng = random.Random(2)
    b = bench("mcts", simulations=60, leaves=4, k=3, max_depth=4)
    while orders := b.ask():
        for order in orders:
            texts = [rng.choice(["", f"{order.id} {i} ", f"Answer: {i}"]) for i in range(3)]
            b.tell(order, *(Sample(t, (1,), "step", verdict=Verdict(0.5, "t")) for t in texts))
        for node in b.tree.nodes():
            below = [n for n in b.tree.nodes() if n.id == node.id or n.id.startswith(node.id + ".")]
            assert node.open_leaves == sum(n.expandable for n in below)
            assert node.in_flight == 0


def test_five_thousand_nodes_take_less_than_a_millisecond_each(bench):
    b = bench("mcts", simulations=2500, leaves=4, k=2, max_depth=30)
    rng = random.Random(3)
    began = time.process_time()
    while orders := b.ask():
        for order in orders:
            b.tell(order, ("a ", rng.random()), ("b ", rng.random()))
    assert len(b.tree) == 5001
    assert (time.process_time() - began) / 5000 < 1e-3


def test_options_are_checked():
    for options in ({"k": 0}, {"simulations": True}, {"c": -1.0}, {"leaves": 0}):
        with pytest.raises(ValueError, match="option"):
            registry.create("mcts", **options)
