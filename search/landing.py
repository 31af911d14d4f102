"""A wave's outcomes in the wave's order, and orders called back that nobody needs any more.

Outcomes are handed over in the order of the wave, whatever order they come in, and a strategy decides what it does not
need by those alone: the tree does not depend on timing. What a recalled order had written is dropped for the same
reason; its tokens are counted. A log keeps outcomes as they come, so that of a wave that was cut off only the orders in
flight are lost; what it has kept is not asked for again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from search.follow_up import received, sent
from search.ports import Flight, Pool
from search.strategies.base import Recalling, Strategy
from search.tree import SearchTree
from search.types import Cost, Expansion, Outcome
from search.wave_log import WaveLog

RECALLED = "cancelled: no longer needed"


async def landed(
    pool: Pool,
    strategy: Strategy,
    tree: SearchTree,
    wave: Sequence[Expansion],
    whole: bool = False,
    log: WaveLog | None = None,
) -> AsyncGenerator[list[Outcome], None]:
    """Portions of the wave, each to be told before the next is asked for; one portion where nothing can be recalled.

    whole: one portion in any case, for those that judge a wave as a whole.
    """
    wire = {order.id: sent(order, pool) for order in wave}
    kept = {id: outcome for id, outcome in (log.landed() if log else {}).items() if id in wire}
    if whole or not isinstance(strategy, Recalling) or "cancel" not in pool.capabilities:
        outcomes = await _all(pool, list(wire.values()), kept, log)
        yield [
            _counted(order, received(order, wire[order.id], o, pool)) for order, o in zip(wave, outcomes, strict=True)
        ]
        return
    landing = _Landing(pool, strategy, tree, wave, wire, kept)
    for portion in landing.portions():
        yield portion
    if not landing.waiting:
        return
    async for outcome in landing.launch():
        _keep(log, outcome)
        landing.came[outcome.expansion_id] = outcome
        for portion in landing.portions():
            yield portion


async def _all(
    pool: Pool, orders: Sequence[Expansion], kept: Mapping[str, Outcome], log: WaveLog | None
) -> list[Outcome]:
    """An outcome an order."""
    if log is None:
        return await pool.expand(orders)
    rest = [order for order in orders if order.id not in kept]
    grown = await pool.expand(rest, partial(_keep, log)) if rest else []
    found = {**kept, **{outcome.expansion_id: outcome for outcome in grown}}
    return [found[order.id] for order in orders]


def _keep(log: WaveLog | None, outcome: Outcome) -> None:
    """Not an order that failed: another process may have better engines. Nor one that was cut short."""
    if log is not None and outcome.error is None and all(s.finish != "cancelled" for s in outcome.samples):
        log.keep(outcome)


class _Landing:
    """A wave of a strategy that recalls. kept: outcomes of an earlier process."""

    def __init__(
        self,
        pool: Pool,
        strategy: Recalling,
        tree: SearchTree,
        wave: Sequence[Expansion],
        wire: Mapping[str, Expansion],
        kept: Mapping[str, Outcome],
    ) -> None:
        self.waiting = list(wave)
        self.came = dict(kept)
        self._pool = pool
        self._strategy = strategy
        self._tree = tree
        self._wire = wire
        self._recalled: set[str] = set()
        self._flight: Flight | None = None

    def launch(self) -> Flight:
        """Start what is neither there nor recalled."""
        ids = [order.id for order in self.waiting if order.id not in self.came and order.id not in self._recalled]
        self._flight = self._pool.launch([self._wire[id] for id in ids])
        return self._flight

    def portions(self) -> Iterator[list[Outcome]]:
        """What can be told now. Before the launch a recalled order need not be waited for: it is never sent."""
        while self.waiting and (outcome := self._next()) is not None:
            order = self.waiting.pop(0)
            if order.id in self._recalled:
                yield [_dropped(order, outcome)]
                continue
            yield [_counted(order, received(order, self._wire[order.id], outcome, self._pool))]
            unneeded = set(self._strategy.unneeded(self._tree)) & set(self._wire)
            fresh = unneeded - self._recalled - {order.id}
            self._recalled |= fresh
            if fresh and self._flight is not None:
                self._flight.cancel(fresh)

    def _next(self) -> Outcome | None:
        order = self.waiting[0]
        if order.id in self._recalled and self._flight is None:
            return self.came.get(order.id) or Outcome(order.id, order.problem_id, order.node_id, cost=Cost())
        return self.came.get(order.id)


def _counted(order: Expansion, outcome: Outcome) -> Outcome:
    """The outcome with what its pruned samples could still have cost."""
    pruned = [sample.generated for sample in outcome.samples if sample.finish == "pruned"]
    if not pruned:
        return outcome
    saved = len(pruned) * order.sampling.max_tokens - sum(pruned)
    return replace(outcome, cost=replace(outcome.cost, saved=outcome.cost.saved + saved))


def _dropped(order: Expansion, outcome: Outcome) -> Outcome:
    """The outcome without its samples, and what the unfinished ones could still have cost."""
    cut = [sample.generated for sample in outcome.samples if sample.finish in ("pruned", "cancelled")]
    unfinished = 0 if outcome.error else order.n - (len(outcome.samples) - len(cut))
    cost = replace(outcome.cost, saved=unfinished * order.sampling.max_tokens - sum(cut))
    return replace(outcome, samples=(), error=RECALLED, cancelled=True, cost=cost)
