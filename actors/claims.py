"""What drivers say of segments: pins of live branches, and omega = score / (depth + 1) of judged ones.

Each driver has books of its own, so that two of them never disturb each other; a driver that was silent for its lease
loses all it claimed.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from engine.eviction import Scores

DRIVER_LEASE_S = 30.0


@dataclass(frozen=True, slots=True)
class Scored:
    """Score and depth of the segment that ends at `key`."""

    key: bytes
    score: float
    depth: int


@dataclass(slots=True)
class _Driver:
    heard_s: float
    pins: dict[str, set[bytes]] = field(default_factory=dict)
    scores: Scores = field(default_factory=Scores)


class Claims:
    """Pins by (driver, tree); a segment is pinned while any tree pins it, and held or not: events may come later."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, lease_s: float = DRIVER_LEASE_S) -> None:
        self.clock = clock
        self.lease_s = lease_s
        self._drivers: dict[str, _Driver] = {}
        self._pins: Counter[bytes] = Counter()

    def pin(self, driver: str, tree: str, keys: Iterable[bytes]) -> None:
        """These segments are on the path of a live branch of the tree."""
        pins = self._heard(driver).pins
        fresh = set(keys).difference(pins.get(tree, ()))
        if fresh:
            pins.setdefault(tree, set()).update(fresh)
            self._pins.update(fresh)

    def unpin(self, driver: str, keys: Iterable[bytes]) -> None:
        """These segments were pruned: neither pins of the driver's trees nor its scores keep them any longer."""
        state, gone = self._heard(driver), set(keys)
        for key in gone:
            state.scores.forget(key)
        for tree, held in list(state.pins.items()):
            self._release(held & gone)
            held -= gone
            if not held:
                del state.pins[tree]

    def end_tree(self, driver: str, tree: str) -> None:
        """All pins of the tree are void, and so are the scores of what no other tree of the driver pins."""
        state = self._heard(driver)
        gone = state.pins.pop(tree, set())
        self._release(gone)
        for key in gone.difference(*state.pins.values()):
            state.scores.forget(key)

    def restore(self, driver: str, trees: Mapping[str, Iterable[bytes]]) -> None:
        """All pins of the driver, by tree, instead of what is known of them."""
        self._unpin_all(self._heard(driver))
        for tree, keys in trees.items():
            self.pin(driver, tree, keys)

    def renew(self, driver: str, pins: int) -> bool:
        """The driver lives and has so many pins (a key counts for each tree); False if others are known here."""
        return sum(map(len, self._heard(driver).pins.values())) == pins

    def note(self, driver: str, items: Iterable[Scored]) -> None:
        """Scores of judged segments, held or not."""
        self._heard(driver).scores.note([(item.key, item.score, item.depth) for item in items])

    def pinned(self, key: bytes) -> bool:
        return key in self._pins

    def omega(self, key: bytes) -> float | None:
        """The highest that a driver gave; None where none did."""
        found = [omega for d in self._drivers.values() if (omega := d.scores.get(key)) is not None]
        return max(found, default=None)

    def expire(self) -> None:
        """Forget drivers that were silent for their lease."""
        now = self.clock()
        for name in [name for name, driver in self._drivers.items() if now - driver.heard_s >= self.lease_s]:
            self._unpin_all(self._drivers.pop(name))

    def stats(self) -> dict[str, int]:
        return {
            "claimants": len(self._drivers),
            "pins": sum(self._pins.values()),
            "scored": sum(len(driver.scores) for driver in self._drivers.values()),
        }

    def check_integrity(self) -> None:
        """Raise RuntimeError if the pins do not add up."""
        pins = Counter(key for d in self._drivers.values() for keys in d.pins.values() for key in keys)
        if pins != self._pins or min(self._pins.values(), default=1) < 1:
            raise RuntimeError(f"{self._pins.total()} pins in the books, {pins.total()} of trees")
        if any(not keys for driver in self._drivers.values() for keys in driver.pins.values()):
            raise RuntimeError("a tree without pins is in the books")

    def _heard(self, driver: str) -> _Driver:
        state = self._drivers.setdefault(driver, _Driver(-math.inf))
        state.heard_s = self.clock()
        return state

    def _unpin_all(self, driver: _Driver) -> None:
        for keys in driver.pins.values():
            self._release(keys)
        driver.pins = {}

    def _release(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._pins[key] -= 1
            if not self._pins[key]:
                del self._pins[key]
