"""One test per budget, and per parameter that seeds a search: each proves that it binds."""

import asyncio
import threading

import pytest

from engine.scripted import ScriptedEngine
from engine.simulated import SimulatedEngine
from engine.text_engine import Latency
from search.budget import Budget, Spent, binding, clip, unused
from search.driver import TreeSearch
from search.simulated import SimulatedPool
from search.strategies import registry
from search.types import Expansion, Problem, Sampling
from search.verifiers.self_evaluation import SelfEvaluation
from search.world import World

WIDE = {
    "ab_mcts": {"simulations": 200, "k": 3, "max_depth": 9, "unit": "step"},
    "beam": {"n": 9, "m": 3, "max_depth": 9},
    "best_of_n": {"samples": 90, "wave": 7},
    "dvts": {"n": 9, "m": 3, "max_depth": 9},
    "greedy": {"max_depth": 40},
    "mcts": {"simulations": 200, "k": 3, "max_depth": 9},
    "rebase": {"n": 9, "max_depth": 9},
    "self_consistency": {"samples": 90, "wave": 7, "stop": "none"},
    "tot": {"b": 3, "k": 3, "max_depth": 9},
}
NARROW = [name for name in WIDE if name != "greedy"]


def step(path, served):
    return f"Thought {'abcdefghijklmnopqrst'[served % 20]} at level {len(path)} of many.\n\n"


class Clock:
    """Seconds that pass only when an engine sleeps."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def spend(lab, name, **budget):
    one = lab(ScriptedEngine(step))
    return one.solve(name, options=WIDE[name], budget=Budget(**budget)), one


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("tokens", [1, 100, 333])
def test_case_21_tokens(lab, name, tokens):
    found, one = spend(lab, name, tokens=tokens)
    assert found.stop_reason == "tokens"
    assert found.cost.generated == one.count("generated") == tokens
    assert found.unused["tokens"] == 0


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("expansions", [1, 5])
def test_case_21_expansions(lab, name, expansions):
    found, one = spend(lab, name, expansions=expansions)
    assert found.stop_reason == "expansions"
    assert one.count("expansions") == expansions
    assert len(found.tree.asked) == len(found.tree.told) == expansions
    assert found.tree.in_flight == 0


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("nodes", [1, 7])
def test_case_21_nodes(lab, name, nodes):
    found, _ = spend(lab, name, nodes=nodes)
    assert found.stop_reason == "nodes"
    assert len(found.tree) - 1 == nodes


@pytest.mark.parametrize("name", [name for name in WIDE if name not in ("greedy", "self_consistency")])
@pytest.mark.parametrize("verifications", [1, 7])
def test_case_21_verifications(lab, name, verifications):
    found, one = spend(lab, name, verifications=verifications)
    assert found.stop_reason == "verifications"
    assert one.count("scores") == verifications


@pytest.mark.parametrize("name", ["greedy", "self_consistency"])
def test_a_strategy_that_judges_nothing_is_not_bound_by_verifications(lab, name):
    found, one = spend(lab, name, verifications=1, expansions=12)
    assert found.stop_reason == "expansions"
    assert one.count("expansions") == 12
    assert found.unused["verifications"] == 1


@pytest.mark.parametrize("name", WIDE)
def test_case_21_seconds(lab, name):
    clock = Clock()
    engine = ScriptedEngine(step, latency=Latency(prefill_rate=5000.0, step_s=0.01), sleep=clock.sleep)
    one = lab(engine)
    found = one.solve(name, verifier=lambda p, t: 0.5, options=WIDE[name], budget=Budget(seconds=2.0), clock=clock)
    assert found.stop_reason == "seconds"
    assert 1.99 <= clock.now - 100.0 <= 2.0 + 0.01
    assert found.cost.seconds["total"] == pytest.approx(clock.now - 100.0)
    assert found.unused["seconds"] == pytest.approx(0.0, abs=0.01)
    assert any(node.thought.finish == "cancelled" for node in found.tree.nodes())


def test_seconds_count_verification_too(lab):
    clock = Clock()
    one = lab(ScriptedEngine(step, latency=Latency(per_call_s=0.3), sleep=clock.sleep))
    found = one.solve("mcts", options=WIDE["mcts"], budget=Budget(seconds=1.0), clock=clock)
    assert found.stop_reason == "seconds"
    assert found.cost.seconds["verify"] == pytest.approx(0.6)
    assert one.count("calls") == 2


def test_scores_that_came_before_the_seconds_ran_out_count(lab):
    """The third path is never judged; the second one has the best score by then."""
    go_on = threading.Event()

    def judge(problem, text):
        return {"0": 0.1, "1": 0.9}.get(text[-1]) or float(go_on.wait())

    one = lab(ScriptedEngine([f"Answer: {i}" for i in range(4)]))
    options = {"samples": 4, "wave": 4}
    try:
        found = one.solve("best_of_n", verifier=judge, options=options, budget=Budget(seconds=1.0), clock=Clock())
    finally:
        go_on.set()
    assert [node.score for node in found.tree.level(1)] == [0.1, 0.9, None, None]
    assert found.answer == "1"
    assert found.warnings == ("verifier: FunctionVerifier did not answer within 1 s",)


@pytest.mark.parametrize("name", NARROW)
def test_two_budgets_the_one_that_binds_is_named(lab, name):
    found, _ = spend(lab, name, tokens=10_000_000, nodes=9, expansions=1000)
    assert found.stop_reason == "nodes"
    assert set(found.unused) >= {"tokens", "nodes", "expansions"}
    assert found.unused["nodes"] == 0 and found.unused["tokens"] > 0


def test_a_budget_that_is_not_reached_does_not_bind(lab):
    found = lab(ScriptedEngine(["Answer: 3"])).solve("greedy", budget=Budget(tokens=50, nodes=5, expansions=5))
    assert (found.stop_reason, found.answer) == ("done", "3")
    assert found.unused == {"tokens": 40, "nodes": 4, "expansions": 4}


def test_equal_proposals_leave_room_in_the_node_budget(lab):
    one = lab(ScriptedEngine(lambda path, served: f"same {len(path)}.\n\n"))
    found = one.solve("tot", options={"b": 2, "k": 3, "max_depth": 9}, budget=Budget(nodes=4))
    assert (found.stop_reason, len(found.tree) - 1) == ("nodes", 4)


def test_the_answer_found_before_the_budget_bound_is_kept(lab):
    one = lab(ScriptedEngine(lambda path, served: "Answer: 6" if not path and not served else step(path, served)))
    found = one.solve("tot", options=WIDE["tot"], budget=Budget(tokens=300))
    assert (found.stop_reason, found.answer, found.complete) == ("tokens", "6", True)


def test_clip_cuts_orders_then_samples_then_tokens():
    def order(n):
        return Expansion(f"o{n}", "p", "r", ((1,),), n, Sampling(max_tokens=50))

    wave = [order(3), order(2), order(4)]
    kept = clip(Budget(expansions=3, nodes=20, tokens=100), Spent(expansions=1, nodes=16, tokens=40), wave)
    assert [o and (o.n, o.sampling.max_tokens) for o in kept] == [(1, 50), None, None]
    assert clip(Budget(), Spent(), wave) == wave
    timed = clip(Budget(seconds=9.0), Spent(seconds=2.0), wave)
    assert [o.deadline_s for o in timed] == [7.0] * 3


@pytest.mark.parametrize(
    ("tokens", "sent"),
    [
        (449, [(3, 50), (2, 50), (3, 50)]),
        (250, [(3, 50), (2, 50), None]),
        (249, [(3, 50), (1, 50), None]),
        (140, [(2, 50), None, None]),
        (50, [(1, 50), None, None]),
        (49, [(1, 49), None, None]),
        (1, [(1, 1), None, None]),
    ],
)
def test_tokens_leave_out_the_last_samples_and_cut_the_only_one(tokens, sent):
    wave = [Expansion(f"o{n}", "p", "r", ((1,),), n, Sampling(max_tokens=50)) for n in (3, 2, 4)]
    kept = clip(Budget(tokens=tokens + 7), Spent(tokens=7), wave)
    assert [order and (order.n, order.sampling.max_tokens) for order in kept] == sent


def test_what_follows_an_order_that_was_cut_is_not_sent_however_short_it_is():
    wave = [Expansion(f"o{limit}", "p", "r", ((1,),), 1, Sampling(max_tokens=limit)) for limit in (60, 50, 10)]
    for tokens, sent in ((55, [55]), (65, [60]), (115, [60, 50]), (120, [60, 50, 10])):
        kept = clip(Budget(tokens=tokens), Spent(), wave)
        assert [order.sampling.max_tokens for order in kept if order] == sent


@pytest.mark.parametrize("name", ["self_consistency", "best_of_n"])
def test_a_large_wave_under_a_budget_is_fewer_whole_samples_not_fragments(name):
    """Samples of 50 to 150 tokens: sixteen at once would get 62 each."""
    world = World(seed=1)
    for problem in world.problems(20):
        pool = SimulatedPool(world)
        strategy = registry.create(name, samples=16, wave=16)
        search = TreeSearch(pool, strategy, SelfEvaluation(pool), budget=Budget(tokens=1000))
        found = asyncio.run(search.run(problem))
        assert found.answer is not None and len(found.tree.complete()) >= 3
        assert found.cost.generated <= 1000


def test_binding_and_unused():
    budget = Budget(tokens=5, seconds=2.0)
    assert binding(budget, Spent(tokens=4, seconds=1.9)) is None
    assert binding(budget, Spent(tokens=5)) == "tokens"
    assert binding(budget, Spent(seconds=2.5)) == "seconds"
    assert unused(budget, Spent(tokens=4, seconds=2.5)) == {"tokens": 1, "seconds": 0}


def test_budgets_are_checked():
    with pytest.raises(ValueError, match="unknown budget 'token'; choices: tokens"):
        Budget.from_mapping({"token": 5})
    for name in ("tokens", "seconds", "expansions", "nodes", "verifications"):
        with pytest.raises(ValueError, match=f"budget {name} must be positive"):
            Budget.from_mapping({name: 0})


@pytest.mark.parametrize("name", WIDE)
def test_case_21_every_seed_changes_the_tree_and_nothing_else_does(lab, plain, name):
    def tree(seed=0, world=0, problem="p", text="What is 6 * 7?"):
        options = {"max_depth": 4} if name in ("tot", "mcts") else {}
        one = lab(SimulatedEngine(seed=world, depth=6))
        return plain(one.solve(name, Problem(text, problem), seed=seed, options=options))

    base = tree()
    assert tree() == base and len(base) > 2
    assert tree(seed=1) != base
    assert tree(world=1) != base
    assert tree(problem="q") != base
