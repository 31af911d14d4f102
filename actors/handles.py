"""How a dispatcher reaches engines and the index: async protocols, and handles for the same process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from actors.engine_actor import EngineActor
from actors.placement import Placed
from actors.rsbcm import RSBCM, Assignment, Scored
from engine.base import Engine
from search.types import Expansion, Outcome, Score, ScoreRequest

T = TypeVar("T")
_CALLS = 64
"""Calls to one engine in this process at a time: as many can share its batch. asyncio's own threads are too few for
that, the number of cores and four."""


class EngineDownError(Exception):
    """The engine's process is gone or does not answer; the same call may succeed elsewhere or later."""


class EngineFailedError(Exception):
    """The engine itself raised; the message is its own."""


class IndexDownError(Exception):
    """The index does not answer; placement goes on by the local view."""


class EngineHandle(Protocol):
    """Every call raises EngineDownError or EngineFailedError and nothing else."""

    @property
    def name(self) -> str: ...

    async def expand(self, orders: Sequence[Expansion], token: str) -> list[Outcome]: ...

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Score]: ...

    async def release(self, keys: Sequence[bytes]) -> None: ...

    async def cancel(self, ids: Sequence[str]) -> None:
        """End requests under way, by `actors.engine_actor.request_id`."""
        ...

    async def note_scores(self, items: Sequence[tuple[bytes, float, int]]) -> None:
        """(prefix key, score, depth) of judged nodes, for eviction."""
        ...

    async def ready(self) -> int:
        """Process id, once the engine (or its restarted successor) can take calls."""
        ...

    async def restart(self) -> None:
        """Kill an engine that hangs; it comes back by itself."""
        ...

    async def stats(self) -> dict[str, Any]: ...


class IndexHandle(Protocol):
    """Every call raises IndexDownError and nothing else."""

    async def assign(self, wave: Assignment) -> list[Placed]: ...

    async def note_scores(self, scores: Sequence[Scored]) -> None: ...

    async def forget(self, actor: str) -> None: ...

    async def end_tree(self, tree: str) -> None: ...

    async def stats(self) -> dict[str, Any]: ...


class InlineEngine:
    """An engine in this process, built at first use."""

    def __init__(self, name: str, build: Callable[[], Engine], index: RSBCM | None = None) -> None:
        self._name = name
        self._build = build
        self._index = index
        self._actor: EngineActor | None = None
        self._calls = ThreadPoolExecutor(_CALLS, f"{name}-call")

    @property
    def name(self) -> str:
        return self._name

    @property
    def actor(self) -> EngineActor:
        if self._actor is None:
            publish = self._index.apply if self._index is not None else None
            self._actor = EngineActor(self._name, self._build, publish)
        return self._actor

    async def expand(self, orders: Sequence[Expansion], token: str) -> list[Outcome]:
        return await self._work(lambda: self.actor.expand(orders, token))

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        return await self._work(lambda: self.actor.score(requests))

    async def release(self, keys: Sequence[bytes]) -> None:
        self._guard(lambda: self.actor.release(keys))

    async def cancel(self, ids: Sequence[str]) -> None:
        if (actor := self._actor) is not None:
            self._guard(lambda: actor.cancel(ids))

    async def note_scores(self, items: Sequence[tuple[bytes, float, int]]) -> None:
        """An engine that was not built yet holds nothing to be scored."""
        if (actor := self._actor) is not None:
            self._guard(lambda: actor.note_scores(items))

    async def ready(self) -> int:
        return self._guard(lambda: self.actor.ping())

    async def restart(self) -> None:
        self._actor = None

    async def stats(self) -> dict[str, Any]:
        return self._guard(lambda: self.actor.stats())

    async def _work(self, call: Callable[[], T]) -> T:
        """In a thread, so that the loop stays free; the actor lets calls share a batch or go one by one."""
        self._guard(lambda: self.actor)
        return await asyncio.get_running_loop().run_in_executor(self._calls, self._guard, call)

    def _guard(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except EngineDownError:
            raise
        except Exception as error:  # process border: whatever an engine raises is its failure, not the driver's
            raise EngineFailedError(f"{type(error).__name__}: {error}") from error


class InlineIndex:
    """The index in this process."""

    def __init__(self, rsbcm: RSBCM) -> None:
        self.rsbcm = rsbcm

    async def assign(self, wave: Assignment) -> list[Placed]:
        return self.rsbcm.assign(wave)

    async def note_scores(self, scores: Sequence[Scored]) -> None:
        self.rsbcm.note_scores(scores)

    async def forget(self, actor: str) -> None:
        self.rsbcm.forget(actor)

    async def end_tree(self, tree: str) -> None:
        self.rsbcm.end_tree(tree)

    async def stats(self) -> dict[str, Any]:
        return self.rsbcm.stats()
