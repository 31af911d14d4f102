"""A driver's own record of what is pinned for it at the index: keeps the pins alive, and gives them to a new index."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

from actors.handles import IndexHandle

_RENEW_S = 5.0


class LivePins:
    """Pins by tree, as `RSBCM.assign`, `unpin` and `end_tree` make and end them. driver: a name of its own."""

    def __init__(self, driver: str, index: IndexHandle, clock: Callable[[], float] = time.monotonic) -> None:
        self.driver = driver
        self.trees: dict[str, set[bytes]] = {}
        self._index = index
        self._clock = clock
        self._renewed_s = -math.inf

    def note(self, tree: str, keys: Iterable[bytes]) -> None:
        """Keys of an assignment that the index got, or did not get: the next `renew` makes up for it."""
        self.trees.setdefault(tree, set()).update(keys)

    async def unpin(self, keys: Iterable[bytes]) -> None:
        """These were pruned."""
        gone = set(keys)
        for tree, held in list(self.trees.items()):
            held -= gone
            if not held:
                del self.trees[tree]
        await self._index.unpin(self.driver, sorted(gone))

    async def end_tree(self, tree: str) -> None:
        self.trees.pop(tree, None)
        await self._index.end_tree(tree, self.driver)

    async def renew(self) -> None:
        """Call it with every wave, and while there are pins: a driver that is silent for `claims.DRIVER_LEASE_S` loses
        them until the next time."""
        if self._clock() < self._renewed_s + _RENEW_S:
            return
        self._renewed_s = self._clock()
        if await self._index.renew(self.driver, sum(map(len, self.trees.values()))) == "resync":
            await self._index.restore(self.driver, {tree: sorted(keys) for tree, keys in self.trees.items()})
