"""A wave under way in a dispatcher: outcomes as the engines give them, and calling orders back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection

from search.types import Outcome

Deliver = Callable[[Outcome], None]


class DispatchedFlight:
    """`search.ports.Flight`. work: runs the wave and delivers each outcome; an exception of its is the iteration's."""

    def __init__(
        self, count: int, work: Callable[[Deliver], Awaitable[None]], recall: Callable[[Collection[str]], None]
    ) -> None:
        self._count = count
        self._work = work
        self._recall = recall
        self._back: asyncio.Queue[Outcome | None] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[Outcome]:
        """The engines start with the iteration; leaving it early abandons what is not back."""
        running = asyncio.ensure_future(self._run())
        try:
            for _ in range(self._count):
                outcome = await self._back.get()
                if outcome is None:
                    break
                yield outcome
            await running
        finally:
            running.cancel()

    def cancel(self, ids: Collection[str]) -> None:
        self._recall(ids)

    async def _run(self) -> None:
        try:
            await self._work(self._back.put_nowait)
        finally:
            self._back.put_nowait(None)
