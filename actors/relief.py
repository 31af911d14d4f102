"""An engine that is left without work takes orders that wait for another one, where that ends sooner."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from actors.orders import Order, ReadyQueue
from actors.placement import MU, Placed
from actors.rates import EngineLoad

if TYPE_CHECKING:
    from actors.order_flow import OrderFlow

_DONORS = 8
"""Engines looked at: the longest of a few queues is long enough, and the work does not grow with the engines."""

RELIEF = "relief"


def relieve(flow: OrderFlow, name: str, room: int) -> bool:
    """Move orders of `room` rows at most to the idle engine `name`, the last in line first; whether any moved."""
    moved = 0
    while moved < room and (donor := _donor(flow, name)) is not None:
        order = flow.queues[donor].last()
        if order is None or name in order.avoid or name in order.at or (moved and moved + order.work.n > room):
            break
        placed = _move(flow, order, donor, name)
        if placed is None:
            break
        flow.unqueue(order, donor)
        flow.enqueue(order, name, placed)
        flow.counts["moved"] += 1
        moved += order.work.n
    return moved > 0


def _donor(flow: OrderFlow, name: str) -> str | None:
    """Of a few engines for which orders wait the one with the most to do; another few next time."""
    some = list(islice(flow.queues, _DONORS))
    for engine in some:
        _to_the_end(flow.queues, engine)
    waiting = [engine for engine in some if engine != name and flow.queues[engine]]
    return max(waiting, key=lambda e: _busy_s(flow, flow.fleet.loads[e], flow.queues[e]), default=None)


def _to_the_end(queues: dict[str, ReadyQueue], engine: str) -> None:
    queues[engine] = queues.pop(engine)


def _busy_s(flow: OrderFlow, load: EngineLoad, queue: ReadyQueue) -> float:
    last = queue.last()
    steps = last.branch.new_tokens if last is not None else 0
    return load.prefill_tokens / load.prefill_rate + load.rows * steps * load.step_s / flow.options.batch_rows


def _move(flow: OrderFlow, order: Order, donor: str, name: str) -> Placed | None:
    """The decision to move, with its terms, or None: what waits at the donor is less than leaving costs."""
    there, here, branch = flow.fleet.loads[donor], flow.fleet.loads[name], order.branch
    booking = order.at[donor]
    ahead_s = (there.prefill_tokens - booking.prefill_tokens) / there.prefill_rate
    ahead_s += (there.rows - booking.rows) * branch.new_tokens * there.step_s / flow.options.batch_rows
    stay_s = ahead_s + booking.prefill_tokens / there.prefill_rate + branch.new_tokens * there.step_s
    held = flow.held(name, order)
    at_home = held >= branch.root_length > 0
    placed = Placed(
        id=branch.id,
        actor=name,
        predicted_hit=held,
        wait_s=0.0,
        recompute_s=(branch.length - held) / here.prefill_rate,
        decode_s=branch.new_tokens * here.step_s,
        away_s=0.0 if at_home else MU * branch.length / here.prefill_rate,
        available=booking.placed.available,
        runner_up=donor,
        runner_up_s=stay_s,
        candidates=2,
        policy=RELIEF,
    )
    return placed if placed.cost_s < stay_s else None
