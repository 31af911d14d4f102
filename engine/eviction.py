"""Eviction policies: in which order segments leave the device, and then the host, when bytes are short.

Only segments without readers and without a segment below them in the same memory are candidates, so a trunk never goes
before its leaves. RKSC: omega = score / (depth + 1).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from engine.kv_segment import Segment

_SCORES = 1 << 16
_LAUNCH_TOKENS = 32
_QUADRATIC_TOKENS = 8192


class Policy(Protocol):
    """The candidate with the smallest order goes first, of equal ones the deepest."""

    @property
    def name(self) -> str: ...

    def order(self, segment: Segment, now: int) -> tuple[float, ...]:
        """now: the tree's clock, which counts matches."""
        ...


class LRU:
    """Least recent use first."""

    name = "lru"

    def order(self, segment: Segment, now: int) -> tuple[float, ...]:
        return (segment.used,)


class Omega:
    """Lowest omega first, where omega of a segment is the maximum over the live segments at and below it.

    Segments without a score at or below them go before all others; ties by least recent use.
    """

    name = "omega"

    def order(self, segment: Segment, now: int) -> tuple[float, ...]:
        omegas = [node.omega for node in segment.below() if node.omega is not None]
        return (1.0, max(omegas), segment.used) if omegas else (0.0, 0.0, segment.used)


class Value:
    """Lowest P(reuse) x recompute cost / bytes first; ties by least recent use.

    P(reuse) = (1 + hits) / (1 + hits + age), age in matches since the last one that passed here. Cost, in tokens of
    linear layers: 32 for a model call, and 1 + position / 8192 for each token, the second term being attention.
    """

    name = "value"

    def order(self, segment: Segment, now: int) -> tuple[float, ...]:
        uses = 1 + segment.hits
        likely = uses / (uses + now - segment.used)
        middle = (segment.start + segment.end) / 2
        cost = _LAUNCH_TOKENS + len(segment.tokens) * (1 + middle / _QUADRATIC_TOKENS)
        return (likely * cost / max(segment.payload.nbytes, 1), segment.used)


POLICIES: Mapping[str, type[LRU] | type[Omega] | type[Value]] = MappingProxyType(
    {policy.name: policy for policy in (LRU, Omega, Value)}
)


def policy(name: str) -> Policy:
    """The policy of this name; ValueError names the choices."""
    if name not in POLICIES:
        raise ValueError(f"unknown eviction policy {name!r}; choices: {', '.join(POLICIES)}")
    return POLICIES[name]()


class Scores:
    """Omega by prefix key, the latest ones: a score may come before its segment, and outlives an eviction."""

    def __init__(self) -> None:
        self._omegas: dict[bytes, float] = {}
        self._lock = threading.Lock()

    def note(self, items: Sequence[tuple[bytes, float, int]]) -> dict[bytes, float]:
        """items: (prefix key, score, depth). Returns the omegas by key."""
        fresh = {key: score / (depth + 1) for key, score, depth in items}
        with self._lock:
            for key, omega in fresh.items():
                self._omegas.pop(key, None)
                self._omegas[key] = omega
            while len(self._omegas) > _SCORES:
                del self._omegas[next(iter(self._omegas))]
        return fresh

    def __len__(self) -> int:
        return len(self._omegas)

    def get(self, key: bytes) -> float | None:
        return self._omegas.get(key)

    def forget(self, key: bytes) -> None:
        with self._lock:
            self._omegas.pop(key, None)
