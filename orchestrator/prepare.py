"""What a call of an Orchestrator is made of: checked arguments, searches not yet started, and their results."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from search.budget import Budget
from search.cgee.gate import Gate
from search.driver import TreeSearch
from search.result import SearchResult
from search.strategies import registry
from search.strategies.base import Strategy
from search.types import Event, Problem
from search.verifiers.sound import from_outside


@dataclass(frozen=True, slots=True)
class Checked:
    """What a call asks for, found sound without an engine. merged, tiers: as `merge` and `tiers` of `TreeSearch`."""

    problems: Sequence[Problem]
    strategy: Strategy
    budget: Budget
    seed: int
    gate: Gate | None
    merged: bool | None = None
    tiers: Sequence[str] | None = None


class Prepared:
    """Checked problems with the search to run on each."""

    def __init__(self, problems: Sequence[Problem], search: TreeSearch, concurrency: int) -> None:
        self.problems = problems
        self.search = search
        self._slots = asyncio.Semaphore(concurrency)

    async def one(self, problem: Problem) -> SearchResult:
        """A search that breaks (a strategy or callback of the user's that raises) is a failed result."""
        async with self._slots:
            try:
                return await self.search.run(problem)
            except BaseException as error:
                if from_outside(error):
                    raise
                return self.search.broken(problem, error)


class NoPool:
    """Stands in for the pool while capabilities are checked; nothing is called on it."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("engines are not started yet")


def as_strategy(strategy: str | Strategy, options: Mapping[str, Any]) -> Strategy:
    """A strategy by name with options, or an object of the user's that has its own."""
    if isinstance(strategy, str):
        return registry.create(strategy, **options)
    if options:
        raise ValueError(f"options {sorted(options)} go with a strategy's name; a strategy object has its own")
    missing = [name for name in ("name", "ask", "tell", "answer", "judges", "needs") if not hasattr(strategy, name)]
    if isinstance(strategy, type) or missing:
        raise ValueError(f"strategy must be a name or a strategy object, got {strategy!r}; names: {registry.names()}")
    return strategy


def outcome_of(future: Future[SearchResult]) -> SearchResult | BaseException:
    if future.cancelled():
        return RuntimeError("the orchestrator was closed while it was solving")
    return future.exception() or future.result()


def drain(
    events: queue.SimpleQueue[Event | SearchResult | BaseException], future: Future[SearchResult]
) -> Iterator[Event | SearchResult]:
    try:
        while True:
            item = events.get()
            if isinstance(item, BaseException):
                raise item
            yield item
            if isinstance(item, SearchResult):
                return
    finally:
        future.cancel()
