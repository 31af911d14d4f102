"""A simulated pool like an engine with one running batch: rows grow side by side, the others wait their turn."""

import heapq
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import replace

from search.simulated import SimulatedPool
from search.types import Expansion, Outcome, Sample
from search.world import World


class LockstepPool:
    """`search.simulated.SimulatedPool` with the capability `cancel`. rows: orders that run at once, a token a tick.

    deaf: cancelling comes too late for everything. backwards: outcomes come back last one first.
    """

    def __init__(self, world: World, rows: int = 4, deaf: bool = False, backwards: bool = False) -> None:
        self.inner = SimulatedPool(world)
        self.rows, self.deaf, self.backwards = rows, deaf, backwards
        self.flights: list[LockstepFlight] = []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    @property
    def capabilities(self) -> frozenset[str]:
        return self.inner.capabilities | {"cancel"}

    def launch(self, wave: Sequence[Expansion]) -> "LockstepFlight":
        self.flights.append(LockstepFlight(self, wave))
        return self.flights[-1]


class LockstepFlight:
    def __init__(self, pool: LockstepPool, wave: Sequence[Expansion]) -> None:
        self.pool = pool
        self.tick = 0
        self.cancelled: list[str] = []
        self.start: dict[str, int] = {}
        self.outcomes: dict[str, Outcome] = {}
        slots = [0] * pool.rows
        for order in wave:
            outcome = pool.inner.outcome(order)
            self.start[order.id] = heapq.heappop(slots)
            self.outcomes[order.id] = outcome
            heapq.heappush(slots, self._end(outcome))

    async def __aiter__(self) -> AsyncIterator[Outcome]:
        while self.outcomes:
            ranked = sorted(self.outcomes.values(), key=lambda outcome: (self._end(outcome), outcome.expansion_id))
            first = ranked[-1 if self.pool.backwards else 0]
            self.tick = max(self.tick, self._end(first))
            yield self.outcomes.pop(first.expansion_id)

    def cancel(self, ids: Collection[str]) -> None:
        self.cancelled += ids
        for id in set(ids) & set(self.outcomes) if not self.pool.deaf else ():
            outcome = self.outcomes[id]
            samples = tuple(self._cut(sample, self.tick - self.start[id]) for sample in outcome.samples)
            cost = replace(outcome.cost, generated=sum(len(sample.token_ids) for sample in samples))
            self.outcomes[id] = replace(outcome, samples=samples, cost=cost)

    def _end(self, outcome: Outcome) -> int:
        return self.start[outcome.expansion_id] + max(len(sample.token_ids) for sample in outcome.samples)

    def _cut(self, sample: Sample, tokens: int) -> Sample:
        if len(sample.token_ids) <= tokens:
            return sample
        return replace(sample, token_ids=sample.token_ids[: max(tokens, 0)], text="", finish="cancelled")
