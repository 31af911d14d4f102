"""Moving KV between engines ahead of an order: one interface, its measured speed, and recomputing when it fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from actors.handles import EngineDownError, EngineFailedError, EngineHandle, InlineEngine
from actors.link import Link

_WEIGHT = 0.3
_PAUSE_S = 30.0
_LATENCY_S = 0.005
_SPLIT_TOKENS = 64
"""Moves of fewer tokens teach about latency, of more about the rate."""
_STALE_S = 60.0
"""A link that was found slow and not used for so long is tried again: nothing is learned of one that nobody uses."""


class Transport(Protocol):
    """How KV gets from one engine to another."""

    async def move(self, source: EngineHandle, target: EngineHandle, key: bytes, start: int) -> int:
        """Send the KV of the path that ends at `key` from its token `start` on; tokens of it that `target` holds then.

        Raises EngineDownError or EngineFailedError, whichever side it is that cannot.
        """
        ...


class InlineTransport:
    """Between engines in this process."""

    async def move(self, source: EngineHandle, target: EngineHandle, key: bytes, start: int) -> int:
        if not isinstance(source, InlineEngine) or not isinstance(target, InlineEngine):
            raise EngineFailedError("engines in one process send KV to each other only")
        return await target.import_kv(await source.export_kv(key, start))


@dataclass(slots=True)
class LinkSpeed:
    """The numbers of a `Link`, followed by exponentially weighted averages of what moves took, the first of which
    replaces what was assumed."""

    tokens_per_s: float
    latency_s: float = _LATENCY_S
    measured: int = 0

    @property
    def link(self) -> Link:
        return Link(self.latency_s, self.tokens_per_s)

    def learn(self, tokens: int, seconds: float) -> None:
        if tokens < _SPLIT_TOKENS:
            self.latency_s += _WEIGHT * (max(seconds - tokens / self.tokens_per_s, 0.0) - self.latency_s)
            return
        token_s = max(seconds - self.latency_s, seconds / 10, 1e-6) / tokens
        before_s = 1 / self.tokens_per_s if self.measured else token_s
        self.tokens_per_s = 1 / (before_s + _WEIGHT * (token_s - before_s))
        self.measured += 1


@dataclass(slots=True)
class TransferCounts:
    moves: int = 0
    tokens: int = 0
    failures: int = 0
    seconds: float = 0.0


class Mover:
    """Brings KV to where an order goes. Nothing it does can fail an order: what does not come is prefilled.

    transport None: nothing is ever moved. After a failure nothing is moved for a while.
    """

    def __init__(
        self,
        transport: Transport | None,
        tokens_per_s: float,
        clock: Callable[[], float] = time.monotonic,
        pause_s: float = _PAUSE_S,
    ) -> None:
        self.transport = transport
        self.speed = LinkSpeed(tokens_per_s)
        self._assumed = tokens_per_s
        self._used_s = float("-inf")
        self.counts = TransferCounts()
        self._clock = clock
        self._pause_s = pause_s
        self._not_before_s = float("-inf")

    @property
    def usable(self) -> bool:
        return self.transport is not None and self._clock() >= self._not_before_s

    @property
    def link(self) -> Link | None:
        """The measured speed, for placement; None while nothing is moved."""
        if not self.usable:
            return None
        link = self.speed.link
        if self._clock() < self._used_s + _STALE_S:
            return link
        return Link(min(link.latency_s, _LATENCY_S), max(link.tokens_per_s, self._assumed))

    async def bring(
        self, source: EngineHandle, target: EngineHandle, key: bytes, start: int, end: int, limit_s: float
    ) -> bool:
        """Have `target` hold the `end` tokens of the path at `key`, of which it holds `start`; whether it then does."""
        if self.transport is None or not self.usable:
            return False
        began = self._clock()
        try:
            async with asyncio.timeout(limit_s):
                held = await self.transport.move(source, target, key, start)
        except TimeoutError:
            self.speed.learn(end - start, self._clock() - began)  # it takes no less
            self._failed()
            return False
        except (EngineDownError, EngineFailedError):
            self._failed()
            return False
        finally:
            self._used_s = self._clock()
        seconds = self._used_s - began
        self.counts.moves += 1
        self.counts.seconds += seconds
        self.counts.tokens += max(held - start, 0)
        if held >= end:
            self.speed.learn(end - start, seconds)
        return held >= end

    def _failed(self) -> None:
        self.counts.failures += 1
        self._not_before_s = self._clock() + self._pause_s
