"""Follows a cluster that grows and shrinks: engines on new resources join, those on leaving nodes are drained."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from actors.dispatcher import Dispatcher
from actors.handles import EngineDownError, EngineFailedError, EngineHandle

LOOK_S = 2.0
_FIRST_S = 600.0
_LONGEST_S = 300.0
"""Where no engine can start one is tried so often."""
_MARGIN = 0.8
"""Of the time that an engine has, it may finish its work in so much."""


@dataclass(frozen=True, slots=True)
class Sight:
    """room: engines that could start now, beside those begun by `Cluster.start`. leaving: engines whose
    node leaves, with the seconds they have."""

    room: int = 0
    leaving: Mapping[str, float] = field(default_factory=dict)


class Cluster(Protocol):
    """Where engines live."""

    async def look(self) -> Sight: ...

    def start(self, name: str) -> EngineHandle:
        """Begin to start an engine; its handle's `ready` says when it is there."""
        ...

    def end(self, handle: EngineHandle) -> None:
        """The engine is not used any more; it may be said twice."""
        ...


class Membership:
    """Run `watch` beside the searches. first: number of the first engine it names `engine-N`."""

    def __init__(self, pool: Dispatcher, cluster: Cluster, first: int, look_s: float = LOOK_S) -> None:
        self._pool = pool
        self._cluster = cluster
        self._next = first
        self._look_s = look_s
        self._leaving: dict[str, float] = {}
        """When the work of engines that leave is ended."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._pause_s = look_s
        self._resume_s = -math.inf

    async def watch(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(self._look_s)
        finally:
            for task in list(self._tasks):
                task.cancel()

    async def look(self) -> None:
        """Begin what the cluster's state asks for; nothing is waited for but the look."""
        sight = await self._cluster.look()
        now = asyncio.get_running_loop().time()
        for name, left_s in sight.leaving.items():
            grace_s = _MARGIN * left_s
            if name in self._pool.engines and now + grace_s < self._leaving.get(name, math.inf):
                self._leaving[name] = now + grace_s
                self._begin(self._leave(name, grace_s))
        for _ in range(sight.room if now >= self._resume_s else 0):
            self._begin(self._join(f"engine-{self._next}"))
            self._next += 1

    async def _join(self, name: str) -> None:
        """Use the engine once it is ready; one that cannot start is given up, and others wait, each time for longer."""
        handle = self._cluster.start(name)
        try:
            async with asyncio.timeout(_FIRST_S):
                await handle.ready()
            self._pool.add(handle)
            self._pause_s = self._look_s
        except (EngineDownError, EngineFailedError, TimeoutError) as error:
            self._pool.on_failure(name, f"did not join: {error}")
            self._cluster.end(handle)
            now = asyncio.get_running_loop().time()
            if now >= self._resume_s:  # several that fail together are one failure
                self._resume_s = now + self._pause_s
                self._pause_s = min(2 * self._pause_s, _LONGEST_S)

    async def _leave(self, name: str, grace_s: float) -> None:
        try:
            self._cluster.end(await self._pool.drain(name, grace_s))
        finally:
            self._leaving.pop(name, None)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
