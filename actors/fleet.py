"""The engines of a pool: which of them can take calls, how loaded they are, and bringing back those that cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

from actors.handles import EngineDownError, EngineFailedError, EngineHandle, IndexDownError
from actors.placement import Load
from actors.rates import EngineLoad

_RETRY_S = 1.0


class Fleet:
    """on_down: awaited once for each engine that goes down, before it is waited for."""

    def __init__(
        self,
        engines: Sequence[EngineHandle],
        on_failure: Callable[[str, str], None],
        on_down: Callable[[str], Coroutine[Any, Any, None]],
    ) -> None:
        self.engines = {engine.name: engine for engine in engines}
        self.loads = {name: EngineLoad() for name in self.engines}
        self.on_failure = on_failure
        self._on_down = on_down
        self._down: dict[str, asyncio.Task[None]] = {}

    def up(self) -> list[str]:
        return [name for name in self.engines if name not in self._down]

    def views(self) -> dict[str, Load]:
        """Loads of the engines that are up."""
        return {name: self.loads[name].view() for name in self.up()}

    def pick(self, preferred: str, avoid: Collection[str]) -> str:
        """`preferred` if it is up and not to be avoided, else the least loaded of the engines nearest to that."""
        up = self.up()
        if preferred in up and preferred not in avoid:
            return preferred
        fresh = [name for name in up if name not in avoid] or up or list(self.engines)
        return min(fresh, key=lambda name: (self.loads[name].rows, name))

    async def some_up(self, patience_s: float) -> bool:
        """True once an engine is up, waiting for restarts if need be."""
        try:
            async with asyncio.timeout(patience_s):
                while not self.up():
                    await asyncio.wait(self._down.values(), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            return False
        return True

    async def timed(self, name: str, call: Coroutine[Any, Any, Any], limit_s: float) -> Any:
        """Await a call; an engine that is silent for longer is restarted and counts as down."""
        try:
            return await asyncio.wait_for(call, limit_s)
        except TimeoutError:
            reason = f"no answer in {limit_s:g} s"
            self.mark_down(name, reason, restart=True)
            raise EngineDownError(reason) from None

    def mark_down(self, name: str, reason: str, restart: bool = False) -> None:
        """Place nothing on this engine until it answers again; restart: it hangs and has to be killed first."""
        if name in self._down:
            return
        self.on_failure(name, reason)
        self._down[name] = asyncio.get_running_loop().create_task(self._revive(name, restart))

    async def quietly(self, call: Coroutine[Any, Any, None]) -> None:
        """For calls whose loss costs time only."""
        try:
            await call
        except (EngineDownError, EngineFailedError, IndexDownError) as error:
            self.on_failure("pool", str(error))

    def close(self) -> None:
        for task in self._down.values():
            task.cancel()

    async def _revive(self, name: str, restart: bool) -> None:
        try:
            if restart:
                await self.quietly(self.engines[name].restart())
            await self._on_down(name)
            while not await self._answers(name):
                await asyncio.sleep(_RETRY_S)
        finally:
            self._down.pop(name, None)

    async def _answers(self, name: str) -> bool:
        try:
            await self.engines[name].ready()
        except (EngineDownError, EngineFailedError):
            return False
        return True
