"""An engine that is left without work takes orders that wait for another one, where that ends sooner."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from actors.link import Link, price_of_leaving
from actors.orders import Order, ReadyQueue
from actors.placement import Placed
from actors.rates import EngineLoad

if TYPE_CHECKING:
    from actors.order_flow import OrderFlow

_DONORS = 8
"""Engines looked at: the longest of a few queues is long enough, and the work does not grow with the engines."""

_PAUSE = 0.05
"""Of a call's seconds: how long an engine is idle before it takes what waits elsewhere."""

RELIEF = "relief"


class Relief:
    """Moves work when engines stay idle for a moment: the trees that live there may be about to come back."""

    def __init__(self, flow: OrderFlow) -> None:
        self._flow = flow
        self._timers: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle]] = {}
        self._idle: dict[str, None] = {}

    def watch(self, name: str) -> None:
        """The engine has no orders: look again in a moment."""
        loop = asyncio.get_running_loop()
        known = self._timers.get(name)
        if self._flow.options.moves and (known is None or known[0] is not loop):
            pause_s = _PAUSE * self._flow.fleet.loads[name].call_s
            self._timers[name] = (loop, loop.call_later(pause_s, self._look, name))

    def wake(self) -> None:
        """Orders wait somewhere: an engine that was idle may take them."""
        if self._idle:
            name = next(iter(self._idle))
            del self._idle[name]
            if self._flow.fleet.is_up(name):
                self.watch(name)

    def close(self) -> None:
        for _, timer in self._timers.values():
            timer.cancel()

    def _look(self, name: str) -> None:
        del self._timers[name]
        flow = self._flow
        rows = flow.free_rows(name)
        if name not in flow.fleet.loads or 2 * flow.fleet.loads[name].sent_rows > flow.options.batch_rows or rows <= 0:
            return
        if not relieve(flow, name, rows):
            self._idle[name] = None


def relieve(flow: OrderFlow, name: str, room: int) -> bool:
    """Move orders of `room` rows at most to the idle engine `name`; whether any moved.

    A problem's orders move together, the last problem in line first: a wave in two halves costs two calls.
    """
    moved = 0
    while moved < room and (decisions := _first(flow, _donors(flow, name), name, room - moved)):
        for order, placed in decisions:
            flow.unqueue(order, placed.runner_up)
            flow.enqueue(order, name, placed)
            flow.on_moved(order.work.problem_id, placed)
            moved += order.work.n
        flow.counts["moved"] += len(decisions)
    return moved > 0


def _first(flow: OrderFlow, donors: Sequence[str], name: str, rows: int) -> list[tuple[Order, Placed]]:
    """What the first of the donors gives for which leaving pays."""
    for donor in donors:
        group = _together(flow.queues[donor].last(), name, rows)
        if group and (decisions := _moves(flow, group, donor, name)):
            return decisions
    return []


def _together(orders: Sequence[Order], name: str, rows: int) -> list[Order]:
    """Orders that may go to `name`, up to so many rows, or one if none is so small and nothing was taken yet."""
    group: list[Order] = []
    for order in orders:
        if name in order.avoid or name in order.at or (group and order.work.n > rows):
            break
        group.append(order)
        rows -= order.work.n
    return group


def _donors(flow: OrderFlow, name: str) -> list[str]:
    """A few engines for which orders wait: late ones first, which may hang, then those with the most to do. Others next
    time."""
    some = list(islice(flow.queues, _DONORS))
    for engine in some:
        _to_the_end(flow.queues, engine)
    waiting = [e for e in some if e != name and flow.queues[e] and (flow.late(e) or not flow.fleet.rivals(e, name))]
    return sorted(waiting, key=lambda e: (not flow.late(e), -_busy_s(flow, flow.fleet.loads[e], flow.queues[e])))


def _to_the_end(queues: dict[str, ReadyQueue], engine: str) -> None:
    queues[engine] = queues.pop(engine)


def _busy_s(flow: OrderFlow, load: EngineLoad, queue: ReadyQueue) -> float:
    steps = queue.last()[-1].branch.new_tokens
    return load.waiting_s + load.rows * _row_s(flow, load, steps)


def _row_s(flow: OrderFlow, load: EngineLoad, new_tokens: int) -> float:
    """Seconds that a row ahead takes: its share of a full batch, and its scoring."""
    return new_tokens * (load.row_s + load.step_s / flow.options.batch_rows) + load.score_s


def _moves(flow: OrderFlow, group: Sequence[Order], donor: str, name: str) -> list[tuple[Order, Placed]]:
    """The decisions to move, with their terms; none if what waits at the donor is less than leaving costs."""
    there, here = flow.fleet.loads[donor], flow.fleet.loads[name]
    bookings = [order.at[donor] for order in group]
    branch = max((order.branch for order in group), key=lambda branch: branch.length)
    ahead_rows = there.rows - sum(booking.rows for booking in bookings)
    ahead_s = ahead_rows * _row_s(flow, there, branch.new_tokens)
    stay_s = ahead_s + there.waiting_s + branch.new_tokens * there.step_s
    link, hits, coming = flow.link(), [], set[bytes]()
    for order in group:
        hits.append(_hit(flow, order, donor, name, coming, link))
        coming.update(order.branch.keys)
    at_home = hits[0].tokens >= group[0].branch.root_length > 0
    away_s = 0.0 if at_home else price_of_leaving(link) * branch.length / here.prefill_rate
    decode_s = branch.new_tokens * here.step_s
    wait_s = here.waiting_s + here.rows * _row_s(flow, here, branch.new_tokens)
    go_s = wait_s + sum(hit.seconds for hit in hits) + decode_s + away_s
    if go_s >= stay_s and not flow.late(donor):  # rates say nothing of an engine that does not keep to them
        return []
    return [
        (
            order,
            Placed(
                id=order.branch.id,
                actor=name,
                predicted_hit=hit.tokens,
                wait_s=wait_s,
                recompute_s=(order.branch.length - hit.tokens) / here.prefill_rate,
                decode_s=decode_s,
                away_s=away_s,
                available=hit.fetched or booking.placed.available,
                source=donor if hit.fetched else "",
                transfer_s=hit.seconds if hit.fetched else None,
                runner_up=donor,
                runner_up_s=stay_s,
                candidates=2,
                policy=RELIEF,
            ),
        )
        for order, hit, booking in zip(group, hits, bookings, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Hit:
    """Of one path: tokens the engine holds or will hold, seconds until it has the rest, and how far that is fetched
    from the donor (0: not at all)."""

    tokens: int
    seconds: float
    fetched: int = 0


def _hit(flow: OrderFlow, order: Order, donor: str, name: str, coming: Collection[bytes], link: Link | None) -> _Hit:
    branch, rate = order.branch, flow.fleet.loads[name].prefill_rate
    tokens = max(flow.held(name, order), flow.coming(name, branch), branch.shared(coming))
    there = min(flow.held(donor, order), order.at[donor].placed.predicted_hit)  # as far as the index knows it, too
    if link is None or not link.pays(there - tokens, rate):
        return _Hit(tokens, (branch.length - tokens) / rate)
    return _Hit(tokens, link.seconds(there - tokens) + (branch.length - there) / rate, there)
