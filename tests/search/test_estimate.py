"""Case 27: a bound of everything a search can use, before it runs; the run never exceeds it."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.base import Branch
from engine.scripted import ScriptedEngine
from engine.simulated import SimulatedEngine
from search.budget import Budget
from search.driver import TreeSearch
from search.estimate import estimate
from search.follow_up import REFINE
from search.prompts import ANSWER_QUESTION, PROPOSE, STEP_QUESTION
from search.simulated import SimulatedPool
from search.strategies import registry
from search.strategies.base import TreeStrategy
from search.types import Sampling
from search.verifiers.self_evaluation import SelfEvaluation
from search.world import World

SMALL = st.integers(1, 4)
OPTIONS = {
    "ab_mcts": st.fixed_dictionaries(
        {"simulations": st.integers(1, 9), "k": SMALL, "unit": st.sampled_from(["answer", "step"]), "max_depth": SMALL}
    ),
    "beam": st.builds(lambda beams, m, d: {"n": beams * m, "m": m, "max_depth": d}, SMALL, SMALL, SMALL),
    "best_of_n": st.fixed_dictionaries({"samples": st.integers(1, 9), "wave": SMALL, "max_tokens": st.integers(9, 99)}),
    "dvts": st.builds(lambda beams, m, d: {"n": beams * m, "m": m, "max_depth": d}, SMALL, SMALL, SMALL),
    "greedy": st.fixed_dictionaries({"max_depth": st.integers(1, 7)}),
    "mcts": st.fixed_dictionaries(
        {
            "simulations": st.integers(1, 12),
            "k": SMALL,
            "max_depth": SMALL,
            "leaves": SMALL,
            "widen": st.sampled_from([0.0, 1.5]),
            "rollouts": st.integers(0, 2),
            "rollout_tokens": st.integers(9, 99),
        }
    ),
    "rebase": st.fixed_dictionaries({"n": st.integers(1, 9), "max_depth": SMALL, "ets": st.booleans()}),
    "self_consistency": st.fixed_dictionaries(
        {"samples": st.integers(1, 9), "wave": SMALL, "stop": st.sampled_from(["beta", "window", "none"])}
    ),
    "tot": st.fixed_dictionaries(
        {
            "b": SMALL,
            "k": st.integers(1, 3),
            "max_depth": st.integers(1, 3),
            "order": st.sampled_from(["bfs", "dfs"]),
            "generate": st.sampled_from(["sample", "propose"]),
            "solutions": SMALL,
        }
    ),
}
RUNS = st.sampled_from(sorted(OPTIONS)).flatmap(lambda name: st.tuples(st.just(name), OPTIONS[name]))
BUDGETS = st.fixed_dictionaries(
    {},
    optional={
        "tokens": st.integers(1, 900),
        "expansions": st.integers(1, 12),
        "nodes": st.integers(1, 20),
        "verifications": st.integers(1, 20),
    },
)


def test_every_strategy_is_covered():
    assert set(OPTIONS) == set(registry.names())


class Counting:
    """A pool that counts its calls and orders."""

    def __init__(self, inner):
        self.inner, self.calls, self.orders, self.samples = inner, 0, 0, 0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def expand(self, wave):
        self.calls += 1
        self.orders += len(wave)
        self.samples += sum(order.n for order in wave)
        return await self.inner.expand(wave)


class CountingVerifier(SelfEvaluation):
    calls: list[int] = []  # noqa: RUF012

    async def score(self, batch):
        self.calls.append(len(batch))
        return await super().score(batch)


@settings(max_examples=300)
@given(RUNS, BUDGETS, st.integers(0, 9), st.integers(5, 60), st.sampled_from([(), ("a", "b"), ("a", "b", "c")]))
def test_case_27_a_run_never_exceeds_its_estimate(run, limits, seed, step_tokens, hints):
    name, options = run
    strategy, budget = registry.create(name, hints=hints, **options), Budget(**limits)
    sampling = Sampling(max_tokens=step_tokens)
    pool = Counting(SimulatedPool(World(seed=seed, depth=2, spread=0.5)))
    verifier = CountingVerifier(pool)
    verifier.calls.clear()
    search = TreeSearch(pool, strategy, verifier, sampling=sampling, budget=budget, seed=seed)
    found = asyncio.run(search.run(pool.inner.world.problems(1)[0]))
    most = estimate(strategy, sampling, budget, prompt_tokens=[64], question_tokens=15, follow_up_tokens=15)
    assert pool.calls <= most.calls and pool.orders <= most.expansions
    assert pool.samples <= most.samples
    assert found.cost.generated <= most.generated
    assert len(found.tree) - 1 <= most.nodes and found.tree.height <= most.depth
    assert len(verifier.calls) <= most.verifier_calls and sum(verifier.calls) <= most.verifications
    assert found.cost.verified <= most.verified
    held = sum(len(node.thought.token_ids) for node in found.tree.nodes())
    assert 64 + held <= most.kv_tokens


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in registry.names()),
        ("tot", {"generate": "propose"}),
        ("mcts", {"rollouts": 2}),
        ("tot", {"order": "dfs", "solutions": 9, "max_depth": 3}),
    ],
)
def test_case_27_the_kv_of_an_engine_stays_below_the_estimate(lab, name, options):
    """Peak of a real KV tree, looked at after every wave and every node."""
    one = lab(SimulatedEngine(depth=6))
    engine, strategy, peaks = one.engines[0], registry.create(name, **options), []
    found = one.solve(strategy, on_event=lambda event: peaks.append((engine.tree.num_tokens, engine.tree.num_bytes)))
    codec = engine.codec
    questions = [len(codec.encode(codec.next_turn(text))) for text in (PROPOSE, REFINE)]
    asked = [len(codec.encode(codec.next_turn(text))) + 1 for text in (STEP_QUESTION, ANSWER_QUESTION)]
    most = estimate(
        strategy,
        Sampling(),
        prompt_tokens=[len(found.tree.prompts[""])],
        question_tokens=max(asked),
        follow_up_tokens=max(questions),
        kv_bytes_per_token=engine.bytes_per_token,
    )
    assert max(tokens for tokens, _ in peaks) <= most.kv_tokens
    assert max(size for _, size in peaks) <= most.kv_bytes
    assert found.cost.verified <= most.verified and found.cost.generated <= most.generated
    assert one.count("calls") <= most.calls and one.count("score_calls") <= most.verifier_calls


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("greedy", {"max_depth": 5}, {"expansions": 5, "samples": 5, "generated": 480, "verifications": 0}),
        ("self_consistency", {"samples": 8}, {"expansions": 8, "samples": 8, "generated": 2048, "depth": 1}),
        ("best_of_n", {"samples": 8}, {"expansions": 8, "samples": 8, "generated": 2048, "verifications": 8}),
        ("beam", {"n": 8, "m": 4, "max_depth": 3}, {"expansions": 5, "samples": 24, "generated": 2304, "depth": 3}),
        ("dvts", {"n": 8, "m": 4, "max_depth": 3}, {"expansions": 6, "samples": 24, "generated": 2304}),
        ("rebase", {"n": 5, "max_depth": 3}, {"expansions": 11, "samples": 15, "generated": 1440}),
        ("tot", {"b": 2, "k": 3, "max_depth": 3}, {"expansions": 5, "samples": 15, "generated": 1440}),
        ("tot", {"order": "dfs", "k": 3, "max_depth": 3}, {"expansions": 13, "samples": 39, "generated": 3744}),
        ("mcts", {"simulations": 10, "k": 2}, {"expansions": 10, "samples": 20, "generated": 1920, "depth": 6}),
        ("mcts", {"simulations": 10, "rollouts": 1}, {"expansions": 10, "samples": 20, "generated": 2560}),
        ("ab_mcts", {"simulations": 10}, {"expansions": 10, "samples": 10, "generated": 2560, "kv_tokens": 2860}),
    ],
)
def test_the_formulas_of_the_strategy_pages(name, options, expected):
    most = estimate(registry.create(name, **options), Sampling(max_tokens=96), prompt_tokens=[100], follow_up_tokens=20)
    found = most.to_json()
    assert {key: found[key] for key in expected} == expected
    assert most.calls == most.expansions and most.nodes == most.samples


@pytest.mark.parametrize("name", registry.names())
def test_no_defaults_cost_more_than_the_default_budget_of_a_comparison(name):
    assert estimate(registry.create(name), Sampling(max_tokens=64), prompt_tokens=[0]).generated <= 2048


def test_case_27_tokens_are_split_into_generation_verification_and_waste(lab):
    """Of three branches of one token each way the beam drops two, and one path of two steps ends."""
    one = lab(ScriptedEngine(lambda path, served: "abc"[served] + "\n\n" if not path else "Answer: 1"))
    found = one.solve("tot", verifier=lambda p, t: 0.9 if t[0] == "a" else 0.1, options={"b": 1, "k": 3})
    tokens = found.to_json()["tokens"]
    assert [node.id for node in found.tree.complete()] == ["r.0.0"]
    assert tokens["generated"] == 3 * 3 + 3 * 10
    assert tokens["wasted"] == found.wasted == 2 * 3 + 2 * 10


def test_a_budget_cuts_the_estimate():
    strategy = registry.create("mcts", simulations=100, k=4)
    most = estimate(strategy, Sampling(), Budget(tokens=500, nodes=30, seconds=9.0), prompt_tokens=[100, 120])
    assert (most.generated, most.nodes, most.verifications, most.kv_tokens) == (500, 30, 30, 720)
    assert (most.expansions, most.seconds, most.kv_bytes) == (100, 9.0, None)


@pytest.mark.parametrize("name", registry.names())
@pytest.mark.parametrize("reply", ["", Branch((), "", "eos"), None], ids=["empty", "no tokens", "fails"])
def test_an_engine_that_gives_nothing_is_not_asked_more_often_than_estimated(lab, name, reply):
    def script(path, served):
        if reply is None:
            raise RuntimeError("out of memory")
        return reply

    strategy, budget = registry.create(name), Budget(tokens=3)
    found = lab(ScriptedEngine(script)).solve(strategy, budget=budget)
    most = estimate(strategy, Sampling(), budget, prompt_tokens=[10])
    assert len(found.tree.asked) <= most.expansions
    assert sum(order.n for order in found.tree.asked.values()) <= most.samples
    assert found.cost.generated <= most.generated == 3


def test_a_strategy_without_a_bound_is_bounded_by_the_budget_alone():
    class Endless(TreeStrategy):
        name = "endless"

        def ask(self, tree, capacity):
            return [tree.expansion(tree.root, 1)]

    unknown = estimate(Endless(), Sampling(), prompt_tokens=[10])
    assert set(unknown.to_json().values()) == {None}
    known = estimate(Endless(), Sampling(), Budget(tokens=40), prompt_tokens=[10], kv_bytes_per_token=2)
    assert (known.generated, known.nodes, known.verifications, known.kv_bytes) == (40, 40, 40, 100)
    assert (known.calls, known.expansions, known.samples) == (None, None, None)
    json.dumps(known.to_json())
