"""What engines have outstanding, over all drivers: reports of each driver, with expiry, and engines by growing load."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field

from actors.placement import PREFILL_RATE, STEP_S, Load

EXPIRY_S = 60.0
"""A driver that is silent for longer is gone, and what it had outstanding with it."""

_WEIGHT = 0.05
_REBUILD = 4
_PASSING = 4
"""Waves over which a prefill that waits now is spread: it passes, while rows come back with every wave."""


@dataclass(slots=True)
class Standing:
    """One engine: outstanding work of all drivers, measured rates, and the rows its trees want in a wave."""

    prefill_tokens: int = 0
    rows: int = 0
    prefill_rate: float = PREFILL_RATE
    step_s: float = STEP_S
    row_s: float = 0.0
    score_s: float = 0.0
    demand: float = 0.0
    trees: int = 0
    parts: dict[str, Load] = field(default_factory=dict)

    @property
    def works(self) -> bool:
        return self.rows > 0 or self.demand > 0

    def put(self, driver: str, load: Load | None) -> None:
        """Replace what `driver` has outstanding here; rates are those that were measured last."""
        before = self.parts.pop(driver, None)
        if before is not None:
            self.prefill_tokens -= before.prefill_tokens
            self.rows -= before.rows
        if load is not None:
            self.parts[driver] = load
            self.prefill_tokens += load.prefill_tokens
            self.rows += load.rows
            self.prefill_rate, self.step_s = load.prefill_rate, load.step_s
            self.row_s, self.score_s = load.row_s, load.score_s


@dataclass(slots=True)
class _Hardware:
    """What several engines compute on."""

    slots: int = 1
    engines: dict[str, Standing] = field(default_factory=dict)

    def full(self, more: int = 0) -> bool:
        """Whether as many engines have work as it bears at full speed, with so `more` that are about to: one beyond
        them would only slow the others."""
        if len(self.engines) <= self.slots:
            return False
        return sum(1 for standing in self.engines.values() if standing.works) + more >= self.slots


@dataclass(slots=True)
class _Driver:
    seen_s: float
    names: list[str] = field(default_factory=list)
    at: dict[str, int] = field(default_factory=dict)
    width: int | None = None

    def add(self, actor: str) -> None:
        if actor not in self.at:
            self.width = None
            self.at[actor] = len(self.names)
            self.names.append(actor)

    def remove(self, actor: str) -> None:
        if (at := self.at.pop(actor, None)) is not None:
            self.width = None
            last = self.names.pop()
            if last != actor:
                self.names[at] = last
                self.at[last] = at


class LoadBook:
    """Reports cost time by what changed, not by how many engines there are."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, expiry_s: float = EXPIRY_S) -> None:
        self.actors: dict[str, Standing] = {}
        self._unused: dict[str, Standing] = {}
        """Engines that no driver can use now and that trees live on: those take their demand away themselves."""
        self._clock = clock
        self._expiry_s = expiry_s
        self._drivers: dict[str, _Driver] = {}
        self._hardware: dict[str, _Hardware] = {}
        self._of: dict[str, str] = {}
        self._heap: list[tuple[float, str]] = []
        self._new_tokens, self._rows_per_engine = 0.0, 1

    def report(self, driver: str, loads: Mapping[str, Load | None], whole: bool) -> bool:
        """Take what changed on a driver's engines (None: not usable any more), or, `whole`, all of it.

        False: this driver is not known here, so that what did not change is not known either.
        """
        now = self._clock()
        self._expire(now)
        known = self._drivers.get(driver)
        if known is None and not whole:
            return False
        if known is None:
            known = self._drivers[driver] = _Driver(now)
        elif whole:
            for actor in [name for name in known.names if name not in loads]:
                self._put(driver, known, actor, None)
        known.seen_s = now
        for actor, load in loads.items():
            self._put(driver, known, actor, load)
        return True

    def names(self, driver: str) -> list[str]:
        """Engines that `driver` can use."""
        return self._drivers[driver].names

    def usable(self, driver: str, actor: str) -> bool:
        return actor in self._drivers[driver].at

    def width(self, driver: str) -> int:
        """Engines of `driver` that work at full speed side by side: fewer than it has where they share hardware."""
        known = self._drivers[driver]
        if known.width is None:
            sharing = Counter(self._of[actor] for actor in known.names if actor in self._of)
            beyond = (max(count - self._hardware[name].slots, 0) for name, count in sharing.items())
            known.width = len(known.names) - sum(beyond)
        return known.width

    def rivals(self, actor: str) -> Collection[str]:
        """Engines that share the hardware of `actor`, itself among them, if that is full: work that goes from one to
        another is done no sooner."""
        hardware = self._hardware.get(self._of.get(actor, ""))
        return hardware.engines if hardware is not None and hardware.full() else ()

    def drivers(self) -> int:
        return len(self._drivers)

    def settle(self, actor: str, rows: float, trees: int) -> None:
        """A tree comes to live here (or leaves: negative numbers); `rows` is its share of a wave."""
        if (standing := self.actors.get(actor) or self._unused.get(actor)) is None:
            return
        standing.trees = max(standing.trees + trees, 0)
        standing.demand = max(standing.demand + rows, 0.0) if standing.trees > 0 else 0.0
        if actor in self.actors:
            self._push(actor)
        elif not standing.trees:
            del self._unused[actor]

    def observe(self, new_tokens: float, rows_per_engine: int) -> None:
        """Follow the typical tokens of a row, which weigh decoding against prefill."""
        first, self._rows_per_engine = not self._new_tokens, rows_per_engine
        self._new_tokens += (1.0 if first else _WEIGHT) * (new_tokens - self._new_tokens)
        if first:
            self._rebuild()

    def busy_s(self, actor: str) -> float:
        """Seconds that a typical row takes here in the waves to come, behind its share of the prefill that waits and
        beside the rows that are to be expected of the trees that live here, and their scoring.

        An idle engine on hardware that is full does it no sooner than the least busy one of those that work there.
        """
        standing = self.actors[actor]
        hardware = self._hardware.get(self._of.get(actor, ""))
        if standing.works or hardware is None or not hardware.full():
            return self._own_s(standing)
        return min(self._own_s(other) for other in hardware.engines.values() if other.works)

    def _own_s(self, standing: Standing) -> float:
        row_s = standing.row_s or standing.step_s / self._rows_per_engine
        rows = max(standing.rows, standing.demand)
        decode_s = (standing.step_s + rows * row_s) * self._new_tokens
        return standing.prefill_tokens / standing.prefill_rate / _PASSING + decode_s + rows * standing.score_s

    def lightest(self, driver: str, beside: Collection[str] = ()) -> Generator[str, None, None]:
        """Engines of this driver by growing `busy_s`; taking k of n costs k log n. Last come those of hardware that is
        full with what was taken before, the engines in `beside` first."""
        known = self._drivers[driver]
        taken: dict[str, tuple[float, str]] = {}
        begun = Counter(self._of[actor] for actor in beside if actor in self._of and not self.actors[actor].works)
        last: list[str] = []
        try:
            while self._heap:
                busy_s, actor = entry = self._heap[0]
                if actor not in self.actors or actor in taken:
                    heapq.heappop(self._heap)
                    continue
                now_s = self.busy_s(actor)
                if abs(now_s - busy_s) > 1e-9:
                    heapq.heapreplace(self._heap, (now_s, actor))
                    continue
                heapq.heappop(self._heap)
                taken[actor] = entry
                if actor not in known.at:
                    continue
                if (name := self._of.get(actor)) is not None and not self.actors[actor].works and actor not in beside:
                    if begun[name] and self._hardware[name].full(begun[name]):
                        last.append(actor)
                        continue
                    begun[name] += 1
                yield actor
            yield from last
        finally:
            for entry in taken.values():
                heapq.heappush(self._heap, entry)

    # -- parts -----------------------------------------------------------------------------------------------------
    def _put(self, driver: str, known: _Driver, actor: str, load: Load | None) -> None:
        standing = self.actors.get(actor)
        if load is None:
            known.remove(actor)
            if standing is not None:
                standing.put(driver, None)
                if not standing.parts:
                    self._move(actor, standing, "", 1)
                    del self.actors[actor]
                    if standing.trees:
                        self._unused[actor] = standing
            return
        if standing is None:
            standing = self.actors[actor] = self._unused.pop(actor, Standing())
        known.add(actor)
        standing.put(driver, load)
        self._move(actor, standing, load.hardware, load.slots)
        self._push(actor)

    def _move(self, actor: str, standing: Standing, name: str, slots: int) -> None:
        """The engine computes on the hardware of this name from now on."""
        before = self._of.get(actor, "")
        if name == before and (not name or self._hardware[name].slots == slots):
            return
        if before:
            del self._of[actor], self._hardware[before].engines[actor]
            if not self._hardware[before].engines:
                del self._hardware[before]
        if name:
            self._of[actor] = name
            hardware = self._hardware.setdefault(name, _Hardware())
            hardware.slots = slots
            hardware.engines[actor] = standing
        for driver in self._drivers.values():
            driver.width = None

    def _push(self, actor: str) -> None:
        """A new entry, and for those that share its hardware; older ones of the same engine are passed over, and swept
        out when they are too many."""
        hardware = self._hardware.get(self._of.get(actor, ""))
        for name in (actor,) if hardware is None else hardware.engines:
            heapq.heappush(self._heap, (self.busy_s(name), name))
        if len(self._heap) > _REBUILD * len(self.actors) + 64:
            self._rebuild()

    def _rebuild(self) -> None:
        self._heap = [(self.busy_s(actor), actor) for actor in self.actors]
        heapq.heapify(self._heap)

    def _expire(self, now: float) -> None:
        for driver in [d for d, known in self._drivers.items() if now - known.seen_s > self._expiry_s]:
            self._leave(driver)

    def _leave(self, driver: str) -> None:
        if (known := self._drivers.pop(driver, None)) is not None:
            for actor in list(known.names):
                self._put(driver, known, actor, None)
