"""PUCT, progressive widening and rollouts of MCTS, and adaptive branching, against values computed by hand."""

import math
import random

import pytest

from engine.scripted import ScriptedEngine
from engine.simulated import SimulatedEngine
from search.strategies import registry
from search.types import Boundary, Sample, Verdict


def step(text, score, logprob=None, tokens=2):
    return Sample(text, (1,) * tokens, "step", logprob=logprob, verdict=Verdict(score, "t"))


def answer(value, score):
    return Sample(f"Answer: {value}", (1, 256), "eos", verdict=Verdict(score, "t"))


# -- puct ----------------------------------------------------------------------------------------------------------
def test_puct_follows_the_hand_computed_value(bench):
    """N = 3 above, N = 1 each: Q + c P sqrt(3) / 2, P the softmax of .2, .6, .5."""
    b = bench("mcts", policy="puct", c=2.0, k=3, leaves=1, simulations=9)
    b.tell(b.ask()[0], ("a ", 0.2), ("b ", 0.6), ("c ", 0.5))
    weights = [math.exp(score) for score in (0.2, 0.6, 0.5)]
    values = [q + 2.0 * w / sum(weights) * math.sqrt(3) / 2 for q, w in zip((0.2, 0.6, 0.5), weights, strict=True)]
    bonus = b.strategy._bonus(b.tree.root, b.tree.children(b.tree.root))
    found = [child.mean_value + bonus[child.id] for child in b.tree.children(b.tree.root)]
    assert found == pytest.approx(values)
    assert b.ask()[0].node_id == "r.1"


def test_puct_by_logprob_prefers_what_the_model_finds_likely(bench):
    """Equal scores; mean log-probabilities -0.5 and -2.0 a token."""
    b = bench("mcts", policy="puct", prior="logprob", k=2, leaves=1)
    b.tell(b.ask()[0], step("a ", 0.5, logprob=-4.0, tokens=2), step("b ", 0.5, logprob=-4.0, tokens=8))
    likely = math.exp(-0.5) / (math.exp(-0.5) + math.exp(-2.0))
    assert b.strategy._prior(b.tree.children(b.tree.root)) == pytest.approx({"r.0": 1 - likely, "r.1": likely})
    assert b.ask()[0].node_id == "r.1"
    assert b.strategy.needs == {"logprobs"}
    assert registry.create("mcts").needs == frozenset()


def test_a_branch_in_flight_counts_as_visited_by_puct_too(bench):
    b = bench("mcts", policy="puct", prior="uniform", c=1.0, k=2, simulations=50, leaves=2)
    b.tell(b.ask()[0], ("left ", 0.5), ("right ", 0.5))
    assert [order.node_id for order in b.ask()] == ["r.0", "r.1"]


# -- progressive widening ------------------------------------------------------------------------------------------
def test_a_node_gets_more_children_as_it_is_visited(bench):
    """widen 2, alpha 1/2: at most ceil(2 sqrt N) children; the root's N is the number of nodes."""
    b = bench("mcts", widen=2.0, alpha=0.5, k=1, leaves=1, simulations=40, max_depth=3, c=0.7)
    rng = random.Random(4)
    while orders := b.ask():
        (order,) = orders
        b.tell(order, (f"{order.id} ", rng.random()))
        tree = b.tree
        for node in tree.nodes():
            assert tree.samples_asked(node) < 2 * math.sqrt(max(node.visits, 1)) + 1
    assert len(tree.children(tree.root)) >= 4
    assert max(len(tree.children(child)) for child in tree.children(tree.root)) >= 2
    assert len(tree.asked) == 40


def test_without_widening_each_node_is_expanded_once(bench):
    b = bench("mcts", k=2, leaves=1, simulations=20)
    while orders := b.ask():
        b.tell(orders[0], (f"{orders[0].id} a ", 0.5), (f"{orders[0].id} b ", 0.4))
    nodes = [order.node_id for order in b.tree.asked.values()]
    assert len(nodes) == len(set(nodes)) == 20


def test_a_widened_tree_whose_paths_have_all_ended_grows_at_its_root(bench):
    b = bench("mcts", widen=0.1, k=1, leaves=1, simulations=5)
    while orders := b.ask():
        b.tell(orders[0], answer(3, 0.5))
    assert [order.node_id for order in b.tree.asked.values()] == ["r"] * 5
    assert b.strategy.answer(b.tree).unused == {"simulations": 0}


# -- rollouts ------------------------------------------------------------------------------------------------------
def test_a_leaf_is_rolled_out_before_it_is_expanded(bench):
    """The rollout's score is backed up along its path; its answer counts; it is never expanded."""
    b = bench("mcts", rollouts=2, k=2, leaves=1, simulations=9, c=0.05, rollout_tokens=77)
    b.tell(b.ask()[0], ("a ", 0.6), ("b ", 0.5))
    (order,) = b.ask()
    assert (order.node_id, order.n, order.mode, order.sampling.max_tokens) == ("r.0", 2, "rollout", 77)
    assert order.sampling.boundary == Boundary.none()
    b.tell(order, answer(5, 0.9), Sample("cut", (1,), "length", verdict=Verdict(0.6, "t")))
    tree = b.tree
    assert (tree.node("r.0").visits, tree.node("r.0").mean_value) == (3, pytest.approx((0.6 + 0.9 + 0.6) / 3))
    assert tree.root.visits == 4
    (order,) = b.ask()
    assert (order.node_id, order.n, order.mode, order.first_sample) == ("r.0", 2, "sample", 2)
    b.tell(order, ("c ", 0.7), ("d ", 0.2))
    (order,) = b.ask()
    assert (order.node_id, order.mode) == ("r.0.2", "rollout")
    chosen = b.strategy.answer(tree)
    assert (chosen.answer, chosen.node_id) == ("5", "r.0.0")
    assert not tree.node("r.0.1").expandable


def test_rollouts_that_all_fail_end_the_leaf(bench):
    b = bench("mcts", rollouts=1, k=2, leaves=1, c=0.1)
    b.tell(b.ask()[0], ("a ", 0.6), ("b ", 0.5))
    b.tell(b.ask()[0], error="engine broke")
    assert (b.tree.node("r.0").status, b.tree.node("r.0").reason) == ("dead", "engine broke")
    assert b.ask()[0].node_id == "r.1"


def test_the_best_path_or_the_vote_answers(bench):
    def tell(b):
        b.tell(b.ask()[0], answer(1, 0.9), answer(2, 0.6), answer(2, 0.5))
        return b.strategy.answer(b.tree).answer

    assert tell(bench("mcts", k=3)) == "2"
    assert tell(bench("mcts", k=3, choose="best")) == "1"


# -- adaptive branching --------------------------------------------------------------------------------------------
def grown_ab(bench, scores, **options):
    """Each order is answered with the next score."""
    b = bench("ab_mcts", leaves=1, **options)
    scores = iter(scores)
    while orders := b.ask():
        b.tell(orders[0], answer(7, next(scores)))
    return b.tree


def test_ab_mcts_draws_are_a_function_of_seed_problem_and_orders(bench):
    rng = random.Random(0)
    scores = [rng.random() for _ in range(30)]
    first, again = (grown_ab(bench, scores, simulations=30).to_json() for _ in range(2))
    assert first == again


def test_ab_mcts_refines_an_answer_behind_a_request(lab):
    def script(path, served):
        return "Answer: 41" if not path else "I was wrong. Answer: 42"

    one = lab(ScriptedEngine(script))
    found = one.solve("ab_mcts", verifier=lambda p, t: 0.9 if "42" in t else 0.4, options={"simulations": 12})
    deep = [node for node in found.tree.nodes() if node.depth == 2]
    assert deep and found.answer == "42"
    question = "\n<user>Check the solution above for mistakes."
    for node in deep:
        shown = one.engines[0].codec.decode(node.thought.token_ids)
        assert shown.startswith(question) and shown.endswith("<assistant>I was wrong. Answer: 42")
        assert node.thought.text == "\n\nI was wrong. Answer: 42"
    assert found.cost.generated == one.count("generated")


def test_what_ab_mcts_asks_was_not_generated(lab):
    one = lab(SimulatedEngine(depth=4))
    found = one.solve("ab_mcts", verifier=lambda p, t: 0.5, options={"simulations": 8})
    nodes = [node for node in found.tree.nodes() if node.depth > 0]
    refined = [node for node in nodes if node.thought.asked]
    assert refined and all(0 < node.thought.generated < len(node.thought.token_ids) for node in refined)
    assert sum(node.thought.generated * node.multiplicity for node in nodes) == found.cost.generated
    on_paths = {step.id: step for node in found.tree.finished() for step in found.tree.path(node)}
    assert found.wasted == found.cost.generated - sum(step.thought.generated for step in on_paths.values())


def test_ab_mcts_goes_deeper_where_depth_pays_and_wider_where_width_pays(bench):
    """Refinements are good (0.95) and fresh answers poor (0.05), or the reverse; 40 simulations each.

    Under either posterior a draw on the wrong side is rare after a few visits, so a clear majority is safe to ask for.
    """

    def depths(fresh, refined):
        b = bench("ab_mcts", leaves=1, simulations=40, max_depth=9)
        while orders := b.ask():
            b.tell(orders[0], answer(7, fresh if orders[0].node_id == "r" else refined))
        return [node.depth for node in b.tree.nodes() if node.depth]

    deep, wide = depths(0.05, 0.95), depths(0.95, 0.05)
    assert sum(depth > 1 for depth in deep) >= 28
    assert sum(depth == 1 for depth in wide) >= 28


def test_ab_mcts_posteriors_come_from_own_children_and_from_below(bench):
    """GEN: the children's own scores; CONT: what grew below them."""
    b = bench("ab_mcts", leaves=1, simulations=9)
    seen = []
    spy = random.Random(0)
    spy.betavariate = lambda a, b: seen.append((round(a, 6), round(b, 6))) or 0.5
    tree = b.tree
    b.tell(tree.expansion(tree.root, 2), answer(1, 0.25), answer(2, 0.5))
    b.tell(tree.expansion(tree.node("r.0"), 1), answer(3, 1.0))
    assert b.strategy._wider(tree.root, spy) is True
    assert seen == [(0.5 + 0.75, 0.5 + 1.25), (0.5 + 1.0, 0.5 + 0.0)]


def test_ab_mcts_never_refines_a_cut_answer_nor_beyond_its_depth(bench):
    b = bench("ab_mcts", leaves=1, simulations=20, max_depth=2)
    while orders := b.ask():
        order = orders[0]
        cut = Sample("cut", (1,), "length", verdict=Verdict(1.0, "t"))
        b.tell(order, cut if len(b.tree.asked) % 2 else answer(7, 0.5))
    asked = {order.node_id for order in b.tree.asked.values()}
    assert all(b.tree.node(node_id).depth < 2 for node_id in asked)
    assert all(b.tree.node(node_id).complete for node_id in asked if node_id != "r")


def test_ab_mcts_by_steps_continues_open_steps_only(bench):
    b = bench("ab_mcts", unit="step", k=2, leaves=3, simulations=30)
    rng = random.Random(5)
    while orders := b.ask():
        for order in orders:
            b.tell(order, (f"{order.id} ", rng.random()), answer(rng.randrange(3), rng.random()))
    assert {order.mode for order in b.tree.asked.values()} == {"sample"}
    assert all(not b.tree.node(order.node_id).complete for order in b.tree.asked.values())
    assert b.tree.height >= 2


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mcts", {"policy": "ucb"}, "option policy must be 'uct' or 'puct', got 'ucb'"),
        ("mcts", {"prior": "x"}, "option prior must be 'score', 'logprob' or 'uniform', got 'x'"),
        ("mcts", {"widen": -1}, r"option widen must be a number in \[0, 1e\+06\], got -1"),
        ("mcts", {"rollouts": -1}, "option rollouts must be an integer >= 0, got -1"),
        ("ab_mcts", {"unit": "token"}, "option unit must be 'answer' or 'step', got 'token'"),
        ("ab_mcts", {"prior_a": 0}, r"option prior_a must be a number in \[0.001, 1000\], got 0"),
        ("rebase", {"ets": 1}, "option ets must be true or false, got 1"),
        ("best_of_n", {"accept": 2}, r"option accept must be a number in \[0, 1\], got 2"),
        ("self_consistency", {"stop": "never"}, "option stop must be 'beta', 'window' or 'none', got 'never'"),
        ("tot", {"evaluate": "guess"}, "option evaluate must be 'value' or 'vote', got 'guess'"),
    ],
)
def test_an_option_that_is_wrong_is_named_with_its_rule_and_choices(name, options, message):
    with pytest.raises(ValueError, match=message):
        registry.create(name, **options)
