"""Hedging: what a call is late with is done by another engine as well; the first result counts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from actors.orders import Call, Order

if TYPE_CHECKING:
    from actors.order_flow import OrderFlow

HEDGE = "hedge"


class Stragglers:
    """Samples depend on the order alone, so the result is the same whichever engine wins."""

    def __init__(self, flow: OrderFlow) -> None:
        self._flow = flow

    def watch(self, call: Call) -> None:
        """Look at the call again once it is late by the engine's measured rates."""
        late_s = self._flow.fleet.loads[call.engine].late_s(call.prefill_tokens, call.steps)
        if self._flow.options.hedging and late_s is not None:
            self._look_in(call, late_s, late_s)

    def _look_in(self, call: Call, seconds: float, late_s: float) -> None:
        call.late = asyncio.get_running_loop().call_later(seconds, self._late, call, late_s)

    def _late(self, call: Call, late_s: float) -> None:
        if not call.is_late:
            call.is_late = True
            self._flow.relief.wake()
        orders = [order for order in call.orders if not order.done and not order.hedged and not order.recalled]
        if orders and not call.over:
            self._flow.spawn(self._hedge(call, orders, late_s))

    async def _hedge(self, call: Call, orders: Sequence[Order], late_s: float) -> None:
        """Send copies to engines that have nothing else to do; while there are none, look again later."""
        flow, left = self._flow, 0
        if not any(flow.free_rows(name) > 0 for name in flow.fleet.engines if name != call.engine):
            self._look_in(call, late_s / 2, late_s)
            return
        for tree in {order.work.problem_id for order in orders}:
            members = [order for order in orders if order.work.problem_id == tree and not order.done]
            if not members:
                continue
            for order, placed in zip(members, await flow.assign(members), strict=False):
                if order.done or order.hedged or order.recalled:
                    continue
                if placed.actor in order.at or placed.actor in order.avoid or flow.free_rows(placed.actor) <= 0:
                    left += 1
                    continue
                order.hedged = True
                flow.counts["hedged"] += 1
                hedge = replace(placed, policy=HEDGE)
                flow.enqueue(order, placed.actor, hedge)
                flow.on_moved(tree, hedge)
        if left and not call.over:
            self._look_in(call, late_s / 2, late_s)
