"""Searches on engines in this process: no Ray, no torch, clocks that tests move."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from actors.dispatcher import Dispatcher, PoolOptions
from actors.handles import InlineEngine, InlineIndex
from actors.rsbcm import RSBCM
from engine.scripted import ScriptedEngine
from engine.text_engine import TextEngine
from engine.tokenizer import ByteCodec
from search.driver import TreeSearch
from search.result import SearchResult
from search.strategies import registry
from search.strategies.base import Strategy
from search.tree import SearchTree
from search.types import Outcome, Problem, Sample, Sampling, Verdict
from search.verifiers.function import FunctionVerifier
from search.verifiers.self_evaluation import SelfEvaluation


class Lab:
    """Engines behind a dispatcher. `handle` wraps each engine; the default lives in this process."""

    def __init__(
        self,
        *engines: TextEngine,
        handle: Callable[..., Any] = InlineEngine,
        options: PoolOptions | None = None,
    ) -> None:
        self.engines = engines
        self.rsbcm = RSBCM()
        fingerprint = "factory" if isinstance(engines[0], ScriptedEngine) else "simulated"
        self.failures: list[tuple[str, str]] = []
        self.pool = Dispatcher(
            [handle(f"engine-{i}", lambda e=e: e, self.rsbcm) for i, e in enumerate(engines)],
            InlineIndex(self.rsbcm),
            ByteCodec(),
            fingerprint,
            engines[0].capabilities,
            options or PoolOptions(batch_rows=64),
            lambda engine, reason: self.failures.append((engine, reason)),
        )

    def search(self, strategy: str | Strategy, verifier: Any = None, options: dict | None = None, **more: Any):
        """verifier: a callable(problem, text) -> score, a Verifier, or None for self-evaluation."""
        chosen = registry.create(strategy, **(options or {})) if isinstance(strategy, str) else strategy
        if verifier is None and chosen.judges:
            verifier = SelfEvaluation(self.pool)
        elif callable(verifier):
            verifier = FunctionVerifier(verifier)
        return TreeSearch(self.pool, chosen, verifier, **more)

    def solve(self, strategy: str | Strategy, problem: str | Problem = "What is 6 * 7?", **more: Any) -> SearchResult:
        return self.solve_all(strategy, [problem], **more)[0]

    def solve_all(self, strategy: str | Strategy, problems: Sequence[str | Problem], **more: Any) -> list[SearchResult]:
        search = self.search(strategy, **more)

        async def run() -> list[SearchResult]:
            asked = [p if isinstance(p, Problem) else Problem(p) for p in problems]
            return await asyncio.gather(*(search.run(problem) for problem in asked))

        return asyncio.run(run())

    def count(self, name: str) -> int:
        return sum(engine.counts[name] for engine in self.engines)

    def check(self) -> None:
        for engine in self.engines:
            engine.tree.check_integrity()
            assert not any(segment.readers for segment in engine.tree.segments())


@pytest.fixture
def lab() -> Iterator[Callable[..., Lab]]:
    """Factory of labs; the books of all their engines are balanced afterwards."""
    made: list[Lab] = []

    def make(*engines: TextEngine, **more: Any) -> Lab:
        made.append(Lab(*engines, **more))
        return made[-1]

    yield make
    for one in made:
        one.check()


class Bench:
    """A tree without engines: ask a strategy, tell it what the test says."""

    def __init__(self, strategy: Strategy, capacity: int = 16, seed: int = 0) -> None:
        self.strategy = strategy
        self.capacity = capacity
        self.tree = SearchTree(Problem("p", "p"), {"": (1, 2, 3)}, Sampling(), seed)

    def ask(self):
        return self.strategy.ask(self.tree, self.capacity)

    def tell(self, order, *samples: tuple[str, float | None] | Sample, error: str | None = None) -> Outcome:
        """samples: (text, score) or Sample; `text` without a final answer is a step."""
        made = [
            s if isinstance(s, Sample) else Sample(s[0], tuple(s[0].encode()), "step", verdict=Verdict(s[1], "test"))
            for s in samples
        ]
        numbered = tuple(replace(s, index=order.first_sample + i) for i, s in enumerate(made))
        outcome = Outcome(order.id, order.problem_id, order.node_id, numbered, "engine", error=error)
        self.strategy.tell(self.tree, outcome)
        return outcome


@pytest.fixture
def bench() -> Callable[..., Bench]:
    def make(name: str, capacity: int = 16, **options: Any) -> Bench:
        return Bench(registry.create(name, **options), capacity)

    return make


@pytest.fixture
def plain() -> Callable[[SearchResult], list[dict]]:
    """The tree without the engines' names: what runs that promise equality must agree on."""

    def nodes(result: SearchResult) -> list[dict]:
        return [{k: v for k, v in node.items() if k != "engine"} for node in result.tree.to_json()["nodes"]]

    return nodes
