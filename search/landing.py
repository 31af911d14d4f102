"""A wave's outcomes in the wave's order, and orders called back that nobody needs any more.

Outcomes are handed over in the order of the wave, whatever order they come in, and a strategy decides what it does not
need by those alone: the tree does not depend on timing. What a recalled order had written is dropped for the same
reason; its tokens are counted.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from search.follow_up import received, sent
from search.ports import Pool
from search.strategies.base import Recalling, Strategy
from search.tree import SearchTree
from search.types import Expansion, Outcome

RECALLED = "cancelled: no longer needed"


async def landed(
    pool: Pool, strategy: Strategy, tree: SearchTree, wave: Sequence[Expansion], whole: bool = False
) -> AsyncGenerator[list[Outcome], None]:
    """Portions of the wave, each to be told before the next is asked for; one portion where nothing can be recalled.

    whole: one portion in any case, for those that judge a wave as a whole.
    """
    wire = {order.id: sent(order, pool) for order in wave}
    if whole or not isinstance(strategy, Recalling) or "cancel" not in pool.capabilities:
        outcomes = await pool.expand(list(wire.values()))
        yield [
            _counted(order, received(order, wire[order.id], o, pool)) for order, o in zip(wave, outcomes, strict=True)
        ]
        return
    flight = pool.launch(list(wire.values()))
    waiting = list(wave)
    came: dict[str, Outcome] = {}
    recalled: set[str] = set()
    async for outcome in flight:
        came[outcome.expansion_id] = outcome
        while waiting and waiting[0].id in came:
            order = waiting.pop(0)
            if order.id in recalled:
                yield [_dropped(order, came[order.id])]
                continue
            yield [_counted(order, received(order, wire[order.id], came[order.id], pool))]
            fresh = {id for id in strategy.unneeded(tree) if id in wire and id not in recalled} - {order.id}
            if fresh:
                recalled |= fresh
                flight.cancel(fresh)


def _counted(order: Expansion, outcome: Outcome) -> Outcome:
    """The outcome with what its pruned samples could still have cost."""
    pruned = [len(sample.token_ids) for sample in outcome.samples if sample.finish == "pruned"]
    if not pruned:
        return outcome
    saved = len(pruned) * order.sampling.max_tokens - sum(pruned)
    return replace(outcome, cost=replace(outcome.cost, saved=outcome.cost.saved + saved))


def _dropped(order: Expansion, outcome: Outcome) -> Outcome:
    """The outcome without its samples, and what the unfinished ones could still have cost."""
    cut = [len(sample.token_ids) for sample in outcome.samples if sample.finish in ("pruned", "cancelled")]
    unfinished = 0 if outcome.error else order.n - (len(outcome.samples) - len(cut))
    cost = replace(outcome.cost, saved=unfinished * order.sampling.max_tokens - sum(cut))
    return replace(outcome, samples=(), error=RECALLED, cancelled=True, cost=cost)
