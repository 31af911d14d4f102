"""Brings the KV that other engines hold to where orders go, as placement decided, before a call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from actors.fleet import Fleet
from actors.orders import Order
from actors.transfer import Mover

_LEAST_S = 0.1
"""A move may take as long as prefilling would, or so many seconds: given up then, it has cost no more than that."""


class Fetching:
    def __init__(self, fleet: Fleet, mover: Mover) -> None:
        self._fleet = fleet
        self._mover = mover

    async def fetch(self, name: str, orders: Sequence[Order]) -> None:
        """Each path once; what does not come is prefilled there.

        Of a tree that which the engine has least of comes first: it may bring the prefix that others begin behind.
        """
        wanted: dict[bytes, list[Order]] = {}
        for order in orders:
            placed = order.at[name].placed
            if placed.source and placed.available > placed.predicted_hit:
                wanted.setdefault(order.branch.keys[order.branch.ends.index(placed.available)], []).append(order)
        paths = sorted(wanted.items(), key=lambda path: path[1][0].at[name].placed.predicted_hit)
        first: dict[bytes, bytes] = {}
        for key, together in paths:
            first.setdefault(together[0].branch.root, key)
        for leads in (True, False):
            turn = [path for path in paths if (first[path[1][0].branch.root] == path[0]) is leads]
            await asyncio.gather(*(self._bring(name, key, together) for key, together in turn))

    async def _bring(self, name: str, key: bytes, orders: Sequence[Order]) -> None:
        placed = orders[0].at[name].placed
        engines = self._fleet.engines
        source = engines.get(placed.source)
        if source is None or not self._fleet.is_up(placed.source):
            return
        limit_s = max(placed.recompute_s, _LEAST_S)
        start, end = placed.predicted_hit, placed.available
        if await self._mover.bring(source, engines[name], key, start, end, limit_s):
            for order in orders:
                booking = order.at[name]
                booking.placed = replace(booking.placed, predicted_hit=end)
