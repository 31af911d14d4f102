"""How a dispatcher reaches engines and the index: async protocols, and handles for the same process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from actors.engine_actor import EngineActor
from actors.placement import Placed
from actors.placer import Assignment
from actors.rsbcm import RSBCM, Scored
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

    @property
    def concurrent(self) -> bool:
        """Whether calls share a batch; else they are served one by one, and orders are gathered for the next."""
        ...

    @property
    def killable(self) -> bool:
        """Whether `restart` ends what runs there; an engine in this process goes on whatever happens to its handle."""
        ...

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
        """Kill an engine that hangs; it comes back by itself. EngineFailedError where it is not `killable`."""
        ...

    async def stats(self) -> dict[str, Any]: ...


class IndexHandle(Protocol):
    """Every call raises IndexDownError and nothing else."""

    async def assign(self, wave: Assignment) -> list[Placed]: ...

    async def note_scores(self, scores: Sequence[Scored], driver: str = "") -> None: ...

    async def unpin(self, driver: str, keys: Sequence[bytes]) -> None: ...

    async def renew(self, driver: str, pins: int) -> str | None:
        """ "resync": the index has another number of the driver's pins, `restore` them."""
        ...

    async def restore(self, driver: str, trees: Mapping[str, Sequence[bytes]]) -> None: ...

    async def forget(self, actor: str) -> None: ...

    async def end_tree(self, tree: str, driver: str = "") -> None: ...

    async def stats(self) -> dict[str, Any]: ...


class InlineEngine:
    """An engine in this process, built at first use."""

    killable = False

    def __init__(self, name: str, build: Callable[[], Engine], index: RSBCM | None = None) -> None:
        self._name = name
        self._build = build
        self._index = index
        self._actor: EngineActor | None = None
        self._under_way = 0
        self._calls = ThreadPoolExecutor(_CALLS, f"{name}-call")

    @property
    def name(self) -> str:
        return self._name

    @property
    def concurrent(self) -> bool:
        try:
            return self.actor.engine.concurrent
        except Exception:  # an engine that cannot be built says so when it is called
            return False

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
        """An engine that was not built yet holds nothing. Behind calls under way it waits in a thread, not the loop."""
        if (actor := self._actor) is None:
            return
        if self._under_way:
            await self._work(lambda: actor.release(keys))
        else:
            self._guard(lambda: actor.release(keys))

    async def cancel(self, ids: Sequence[str]) -> None:
        if (actor := self._actor) is not None:
            self._guard(lambda: actor.cancel(ids))

    async def note_scores(self, items: Sequence[tuple[bytes, float, int]]) -> None:
        """An engine that was not built yet holds nothing to be scored."""
        if (actor := self._actor) is not None:
            self._guard(lambda: actor.note_scores(items))

    async def export_kv(self, key: bytes, start: int) -> bytes:
        return await self._work(lambda: self.actor.export_kv(key, start))

    async def import_kv(self, data: bytes) -> int:
        return await self._work(lambda: self.actor.import_kv(data))

    async def ready(self) -> int:
        return self._guard(lambda: self.actor.ping())

    async def restart(self) -> None:
        raise EngineFailedError("an engine in this process cannot be killed")

    async def stats(self) -> dict[str, Any]:
        return self._guard(lambda: self.actor.stats())

    async def _work(self, call: Callable[[], T]) -> T:
        """In a thread, so that the loop stays free; the actor lets calls share a batch or go one by one."""
        self._guard(lambda: self.actor)
        self._under_way += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._calls, self._guard, call)
        finally:
            self._under_way -= 1

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

    async def note_scores(self, scores: Sequence[Scored], driver: str = "") -> None:
        self.rsbcm.note_scores(scores, driver)

    async def unpin(self, driver: str, keys: Sequence[bytes]) -> None:
        self.rsbcm.unpin(driver, keys)

    async def renew(self, driver: str, pins: int) -> str | None:
        return self.rsbcm.renew(driver, pins)

    async def restore(self, driver: str, trees: Mapping[str, Sequence[bytes]]) -> None:
        self.rsbcm.restore(driver, trees)

    async def forget(self, actor: str) -> None:
        self.rsbcm.forget(actor)

    async def end_tree(self, tree: str, driver: str = "") -> None:
        self.rsbcm.end_tree(tree, driver)

    async def stats(self) -> dict[str, Any]:
        return self.rsbcm.stats()
