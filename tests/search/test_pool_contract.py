"""What a search promises with every strategy on every kind of pool; the strategies alone: `test_strategy_contract`.

Pools: one engine behind the dispatcher, three of them, whole waves of a simulated world, and orders that fly alone and
come back last one first. Engines in Ray actors: `tests/cluster/test_ray.py`.
"""

import asyncio
import pickle
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from engine.simulated import SimulatedEngine
from search.budget import Budget
from search.driver import TreeSearch
from search.simulated import SimulatedPool
from search.strategies import registry
from search.types import Problem
from search.verifiers.self_evaluation import SelfEvaluation
from search.world import World
from tests.search.conftest import Lab
from tests.search.lockstep import LockstepPool
from tests.search.test_strategy_contract import check_books
from tests.search.test_wave_log import Memory, Stop

WORLD = World(depth=5)
POOLS = {
    "one engine": lambda: Lab(SimulatedEngine(depth=5)).pool,
    "three engines": lambda: Lab(*(SimulatedEngine(depth=5) for _ in range(3))).pool,
    "world": lambda: SimulatedPool(WORLD),
    "flights": lambda: LockstepPool(WORLD, 3, backwards=True),
}
STRATEGIES = sorted(registry.names())
EVERY = pytest.mark.parametrize("pool", POOLS)
ALL = pytest.mark.parametrize("name", STRATEGIES)
PROBLEM = Problem("Problem w0-0", "w0-0", "number")


class Flaky:
    """Every third order fails, and one verdict in five."""

    def __init__(self, inner) -> None:
        self.inner, self.seen = inner, Counter()

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def expand(self, wave):
        return [self._broken(outcome) for outcome in await self.inner.expand(wave)]

    def launch(self, wave):
        return FlakyFlight(self, self.inner.launch(wave))

    async def score(self, requests):
        scores = await self.inner.score(requests)
        self.seen["scores"] += len(scores)
        return [replace(s, p_yes=None, error="no score") if i % 5 == 0 else s for i, s in enumerate(scores)]

    def _broken(self, outcome):
        self.seen["orders"] += 1
        if self.seen["orders"] % 3:
            return outcome
        self.seen["broken"] += 1
        return replace(outcome, samples=(), error=f"engine broke on {outcome.expansion_id}")


class FlakyFlight:
    def __init__(self, pool, inner) -> None:
        self.pool, self.inner = pool, inner

    async def __aiter__(self):
        async for outcome in self.inner:
            yield self.pool._broken(outcome)

    def cancel(self, ids) -> None:
        self.inner.cancel(ids)


def solve(name, pool, log=None, wrap=lambda pool: pool, **options):
    made = wrap(POOLS[pool]())
    strategy = registry.create(name)
    verifier = SelfEvaluation(made) if strategy.judges else None
    return asyncio.run(TreeSearch(made, strategy, verifier, **options).run(PROBLEM, log))


def facts(result):
    """What equal runs agree on: all but the engines' names and the seconds."""
    nodes = [{k: v for k, v in n.items() if k != "engine"} for n in result.tree.to_json()["nodes"]]
    return result.answer, result.text, result.stop_reason, dict(result.votes), dict(result.unused), nodes


def used(result) -> dict[str, int]:
    judged = sum(node.score is not None for node in result.tree.nodes())
    counts = (result.cost.generated, len(result.tree.asked), len(result.tree) - 1, judged)
    return dict(zip(("tokens", "expansions", "nodes", "verifications"), counts, strict=True))


@cache
def free(name, pool):
    return solve(name, pool, seed=1)


@EVERY
@ALL
def test_budgets_bind(name, pool):
    """Half of what a free run takes is never exceeded, and is why the search ends."""
    for limit, amount in used(free(name, pool)).items():
        if amount < 2:
            continue
        found = solve(name, pool, seed=1, budget=Budget(**{limit: amount // 2}))
        assert used(found)[limit] <= amount // 2, limit
        assert found.stop_reason == limit or used(found)[limit] < amount // 2, limit
        assert found.error is None
        check_books(found.tree)


@EVERY
@ALL
def test_seeds_reproduce(name, pool):
    assert facts(solve(name, pool, seed=1)) == facts(free(name, pool))
    if name != "greedy":
        assert facts(solve(name, pool, seed=2)) != facts(free(name, pool))


@pytest.mark.parametrize("capacity", [1, 16])
@EVERY
@ALL
def test_any_capacity_is_valid_and_failures_are_tolerated(name, pool, capacity):
    flaky = []
    found = solve(name, pool, capacity=capacity, wrap=lambda made: flaky.append(Flaky(made)) or flaky[0])
    check_books(found.tree)
    assert found.tree.told == set(found.tree.asked) and found.tree.in_flight == 0
    broken = {node.id for node in found.tree.nodes() if node.status == "dead"}
    assert found.error is None or broken
    assert flaky[0].seen["orders"] == len(found.tree.told)
    assert (flaky[0].seen["broken"] > 0) == (flaky[0].seen["orders"] >= 3)


@EVERY
@ALL
def test_a_search_that_was_written_down_goes_on_to_the_same_end(name, pool):
    first = Memory([], stop_at=1)
    with pytest.raises(Stop):
        solve(name, pool, first, seed=1)
    kept = pickle.loads(pickle.dumps(first.kept))
    assert facts(solve(name, pool, Memory(kept), seed=1)) == facts(free(name, pool))


@ALL
def test_the_number_of_engines_does_not_matter(name):
    assert facts(free(name, "one engine")) == facts(free(name, "three engines"))
