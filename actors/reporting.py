"""When a driver speaks to the index between its waves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_SOON_S = 2.0
_ALIVE_S = 10.0
"""How often a driver with something outstanding speaks at least: the index forgets one that is silent
(`claims.DRIVER_LEASE_S`, `loads.EXPIRY_S`), and calls may take longer than that."""


class Reporting:
    """Calls `report` in a while, so that many changes are one message, and then as long as anything is outstanding."""

    def __init__(self, report: Callable[[], object], outstanding: Callable[[], bool]) -> None:
        self._report = report
        self._outstanding = outstanding
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        self._within(_SOON_S)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _within(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None and self._loop is loop:
            if self._timer.when() <= loop.time() + seconds:
                return
            self._timer.cancel()
        self._loop, self._timer = loop, loop.call_later(seconds, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._report()
        if self._outstanding():
            self._within(_ALIVE_S)
