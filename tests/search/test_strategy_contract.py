"""What every strategy of the registry promises, whatever its idea is."""

import asyncio
import json
import pickle
import random
from hashlib import blake2b

import pytest

from engine.simulated import SimulatedEngine
from search.budget import Budget
from search.driver import TreeSearch
from search.simulated import SimulatedPool
from search.strategies import registry
from search.strategies.base import Recalling, Strategy, TreeStrategy
from search.tree import SearchTree
from search.types import ENDED, Outcome, Problem, Sample, Sampling, Selection, Verdict
from search.verifiers.self_evaluation import SelfEvaluation
from search.world import World
from tests.search.lockstep import LockstepPool

VARIANTS = {
    **{name: (name, {}) for name in registry.names()},
    "self_consistency-window": ("self_consistency", {"stop": "window", "samples": 12, "wave": 3}),
    "self_consistency-confidence": ("self_consistency", {"stop": "none", "vote": "confidence"}),
    "self_consistency-pruned": ("self_consistency", {"prune": 0.5, "warmup": 3, "samples": 12, "stop": "none"}),
    "best_of_n-vote": ("best_of_n", {"choose": "vote", "aggregate": "mean", "accept": 0.9}),
    "beam-min": ("beam", {"n": 6, "m": 2, "aggregate": "min", "choose": "vote"}),
    "dvts-prod": ("dvts", {"n": 9, "m": 3, "aggregate": "prod", "max_depth": 5}),
    "rebase-ets": ("rebase", {"ets": True, "n": 7, "aggregate": "sum_logprob"}),
    "tot-dfs": ("tot", {"order": "dfs", "solutions": 3, "prune_below": 0.2}),
    "tot-propose-vote": ("tot", {"generate": "propose", "evaluate": "vote", "b": 3}),
    "mcts-puct": ("mcts", {"policy": "puct", "choose": "best", "aggregate": "mean"}),
    "mcts-logprob": ("mcts", {"policy": "puct", "prior": "logprob", "leaves": 8}),
    "mcts-widen": ("mcts", {"widen": 1.5, "k": 1, "simulations": 24}),
    "mcts-rollouts": ("mcts", {"rollouts": 2, "simulations": 24}),
    "mcts-widen-rollouts": ("mcts", {"rollouts": 1, "widen": 2.0, "alpha": 0.4, "simulations": 24}),
    "ab_mcts-steps": ("ab_mcts", {"unit": "step", "k": 2, "leaves": 6, "simulations": 24, "prior_a": 1, "prior_b": 1}),
}
ALL = pytest.mark.parametrize("variant", VARIANTS)
FAILING = pytest.mark.parametrize("failing", [False, True], ids=["", "failing"])
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
        rule, lowest = order.sampling.prune, draw("lowest", order.node_id, i) % 101 / 100
        if rule is not None and rule.floor is not None and lowest < rule.floor:
            finish = "pruned"
        lowest = None if rule is None else lowest
        samples.append(Sample(text, tuple(text.encode()) or (256,), finish, i, verdict=verdict, lowest=lowest))
    return Outcome(order.id, order.problem_id, order.node_id, tuple(samples), f"e{draw(order.id) % 3}")


def make(variant, **more) -> Strategy:
    name, options = VARIANTS[variant]
    return registry.create(name, **{**options, **more})


def plant() -> SearchTree:
    return SearchTree(Problem("p", "p"), {hint: (1, 2, *hint.encode()) for hint in HINTS}, Sampling(), 0)


def step(strategy, tree, capacity=16, failing=False, shuffle=None) -> list[Outcome]:
    """Ask for one wave and tell it; what was told."""
    wave = strategy.ask(tree, capacity)
    assert len({order.id for order in wave}) == len(wave)
    for order in wave:
        assert tree.node(order.node_id).status == "expanding"
        assert order.context == (tree.prompts[order.hint], *tree.context(tree.node(order.node_id))[1:])
    outcomes = [reply(order, failing) for order in wave]
    if shuffle is not None:
        shuffle.shuffle(outcomes)
    for outcome in outcomes:
        strategy.tell(tree, outcome)
    return outcomes


def play(variant, *, capacity=16, shuffle=None, failing=False, tree=None, **options) -> tuple[SearchTree, Selection]:
    """Run to the end without a driver; returns the tree and the answer."""
    strategy, tree = make(variant, **options), tree or plant()
    for _ in range(500):
        if not step(strategy, tree, capacity, failing, shuffle):
            assert tree.in_flight == 0
            assert strategy.ask(tree, capacity) == []
            return tree, strategy.answer(tree)
    raise AssertionError(f"{variant} does not end")


def state(tree: SearchTree) -> tuple:
    """All that a strategy can see of a tree."""
    nodes = [[getattr(node, slot) for slot in node.__slots__] for node in tree.nodes()]
    return nodes, list(tree.asked), sorted(tree.told), [tree.samples_asked(node) for node in tree.nodes()]


def check_books(tree: SearchTree) -> None:
    """What holds of a tree at any time."""
    flying = [order for order in tree.asked.values() if order.id not in tree.told]
    for node in tree.nodes():
        below = [n for n in tree.nodes() if n.id == node.id or n.id.startswith(node.id + ".")]
        ids = {n.id for n in below}
        assert node.in_flight == sum(order.node_id in ids for order in flying)
        assert node.open_leaves == sum(n.expandable for n in below)
        children = tree.children(node)
        assert [child.index for child in children] == sorted({child.index for child in children})
        assert node.status != "expanding" or any(order.node_id == node.id for order in flying)
        assert node.thought.text.strip() or node.parent is None
        assert node.thought.finish not in ENDED or node.complete
        assert node.status != "dead" or node.reason
        own = node.multiplicity if node.value is not None else 0
        assert node.visits == own + sum(child.visits for child in children)


@FAILING
@pytest.mark.parametrize("hints", [(), HINTS], ids=["plain", "hints"])
@ALL
def test_any_tell_order_of_a_wave_gives_the_same_tree(variant, hints, failing):
    tree, chosen = play(variant, failing=failing, hints=hints)
    exported = tree.to_json()
    assert len(tree) > 1
    for seed in range(6):
        other, selection = play(variant, shuffle=random.Random(seed), failing=failing, hints=hints)
        assert other.to_json() == exported
        assert selection == chosen


@FAILING
@ALL
def test_a_repeated_tell_changes_nothing(variant, failing):
    strategy, tree = make(variant), plant()
    told = []
    while outcomes := step(strategy, tree, failing=failing):
        told += outcomes
        before, answer = state(tree), strategy.answer(tree)
        for outcome in told:
            strategy.tell(tree, outcome)
        assert state(tree) == before
        assert strategy.answer(tree) == answer
    assert tree.to_json() == play(variant, failing=failing)[0].to_json()


@FAILING
@pytest.mark.parametrize("capacity", [1, 2, 16])
@ALL
def test_the_tree_is_valid_at_any_capacity_and_failures_are_tolerated(variant, failing, capacity):
    tree, chosen = play(variant, capacity=capacity, failing=failing)
    exported = json.loads(json.dumps(tree.to_json()))["nodes"]
    assert [node["id"] for node in exported] == sorted(
        (node.id for node in tree.nodes()), key=lambda i: (i.count("."), [int(part) for part in i.split(".")[1:]])
    )
    assert tree.told == set(tree.asked)
    check_books(tree)
    assert all(node.status in ("expanded", "open") for node in tree.nodes() if tree.has_children(node))
    if chosen.node_id is not None:
        assert tree.node(chosen.node_id).complete == chosen.complete or not chosen.complete
    assert chosen.complete == (chosen.answer is not None and bool(tree.complete()))


@FAILING
@pytest.mark.parametrize("capacity", [1, 3, 16])
@ALL
def test_outcomes_that_trickle_in_one_by_one_in_any_order_give_a_valid_tree(variant, capacity, failing):
    """A strategy is asked again after every single outcome; nothing is asked twice and every bound holds."""
    strategy, rng = make(variant), random.Random(capacity)
    tree, flying = plant(), []
    for _ in range(2000):
        asked = strategy.ask(tree, capacity)
        flying += asked
        check_books(tree)
        if not flying:
            break
        assert not asked or len(flying) <= max(capacity, len(asked))
        strategy.answer(tree)
        strategy.tell(tree, reply(flying.pop(rng.randrange(len(flying))), failing))
    assert not flying and strategy.ask(tree, capacity) == []
    ceiling = strategy.ceiling(tree.sampling)
    assert len(tree.asked) <= ceiling.expansions
    assert sum(order.n for order in tree.asked.values()) <= ceiling.samples
    assert sum(order.n * order.sampling.max_tokens for order in tree.asked.values()) <= ceiling.tokens
    assert tree.height <= ceiling.depth


@FAILING
@pytest.mark.parametrize("waves", [1, 2, 3])
@ALL
def test_a_tree_that_was_written_down_in_the_middle_of_a_wave_goes_on_to_the_same_end(variant, waves, failing):
    expected, chosen = play(variant, failing=failing)
    strategy, tree = make(variant), plant()
    for _ in range(waves - 1):
        step(strategy, tree, failing=failing)
    wave = strategy.ask(tree, 16)
    half = len(wave) // 2
    for order in wave[:half]:
        strategy.tell(tree, reply(order, failing))
    stored, sent = pickle.dumps(tree), pickle.dumps(wave[half:])
    strategy, tree = make(variant), pickle.loads(stored)
    for order in pickle.loads(sent):
        strategy.tell(tree, reply(order, failing))
    tree, selection = play(variant, failing=failing, tree=tree)
    assert tree.to_json() == expected.to_json()
    assert selection == chosen


@FAILING
@ALL
def test_outcomes_that_were_kept_rebuild_the_tree(variant, failing):
    """Asking again and telling what is on record gives the tree, which is what a resumed run does."""
    strategy, tree, record = make(variant), plant(), {}
    while outcomes := step(strategy, tree, failing=failing):
        record.update((outcome.expansion_id, outcome) for outcome in outcomes)
    again = plant()
    while wave := strategy.ask(again, 16):
        for order in wave:
            strategy.tell(again, record.pop(order.id))
    assert not record
    assert again.to_json() == tree.to_json()


@ALL
def test_an_answer_can_be_asked_for_at_any_time(variant):
    strategy, tree = make(variant), plant()
    assert strategy.answer(tree).answer is None
    assert strategy.answer(tree).reason in ("no_answer", "done")
    strategy.ask(tree, 4)
    assert strategy.answer(tree).answer is None


@ALL
def test_all_expansions_failing_end_the_search(variant):
    strategy, tree = make(variant), plant()
    for _ in range(50):
        wave = strategy.ask(tree, 16)
        for order in wave:
            strategy.tell(tree, Outcome(order.id, order.problem_id, order.node_id, error=f"broke {order.first_sample}"))
        if not wave:
            break
    assert strategy.ask(tree, 16) == [] and tree.in_flight == 0
    assert (tree.root.status, tree.root.reason) == ("dead", "broke 0")
    assert strategy.answer(tree).reason == "no_answer"


@pytest.mark.parametrize("waves", [0, 1, 2, 3])
@ALL
def test_a_withdrawn_order_leaves_no_trace(variant, waves):
    strategy, tree = make(variant), plant()
    for _ in range(waves):
        step(strategy, tree)
    copy = pickle.loads(pickle.dumps(tree))
    wave = strategy.ask(tree, 16)
    for order in wave:
        tree.withdraw(order)
    check_books(tree)
    assert list(tree.asked) == list(copy.asked)
    assert strategy.ask(tree, 16) == wave == strategy.ask(copy, 16)
    assert tree.to_json() == copy.to_json()


LIMITS = [(variant, limit) for variant in VARIANTS for limit in ("tokens", "expansions", "nodes")]
LIMITS.remove(("tot-propose-vote", "tokens"))  # a reply whose lines are all cut proposes nothing: the search ends


@pytest.mark.parametrize(("variant", "limit"), LIMITS)
def test_budgets_bind(lab, variant, limit):
    amount = {"tokens": 20, "expansions": 2, "nodes": 2}[limit]
    found = lab(SimulatedEngine(depth=9)).solve(make(variant), budget=Budget(**{limit: amount}))
    used = {"tokens": found.cost.generated, "expansions": len(found.tree.asked), "nodes": len(found.tree) - 1}
    assert used[limit] == amount
    assert found.stop_reason == limit
    assert found.unused[limit] == 0


@ALL
def test_seeds_reproduce(lab, plain, variant):
    first, again, other = (lab(SimulatedEngine(depth=5)).solve(make(variant), seed=seed) for seed in (3, 3, 4))
    assert plain(first) == plain(again)
    assert plain(first) != plain(other)
    assert (first.answer, first.text, first.votes, first.unused) == (
        again.answer,
        again.text,
        again.votes,
        again.unused,
    )


@ALL
def test_the_result_is_one_json_object(lab, variant):
    found = lab(SimulatedEngine()).solve(make(variant))
    row = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert row["id"] == found.problem.id and row["strategy"] == VARIANTS[variant][0]
    assert len(row["tree"]["nodes"]) == len(found.tree)
    assert row["complete"] is True and row["node"] in {node["id"] for node in row["tree"]["nodes"]}


@ALL
def test_the_pool_does_not_matter(variant):
    """Whole waves, or orders that fly alone, come back in any order and may be called back."""
    world = World(depth=2)

    def solved(pool):
        search = TreeSearch(pool, make(variant), SelfEvaluation(pool), seed=2)
        found = asyncio.run(search.run(world.problems(1)[0]))
        return found.tree.to_json(), found.answer, dict(found.votes), found.stop_reason

    pools = [SimulatedPool(world), *(LockstepPool(world, rows, backwards=rows == 3) for rows in (1, 3, 16))]
    whole, *flown = [solved(pool) for pool in pools]
    assert flown[0] == flown[1] == flown[2]
    if not isinstance(make(variant), Recalling):
        assert whole == flown[0]


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
