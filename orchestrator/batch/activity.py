"""When engines had work: the time in which each had at least one call outstanding, as the driver sees it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Busy:
    """One stretch of an engine's work, in seconds since the activity was begun."""

    engine: str
    begins_s: float
    ends_s: float


class Activity:
    """Give `on_call` to a dispatcher. gap_s: shorter pauses do not end a stretch, but count as idle."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, gap_s: float = 0.05) -> None:
        self._clock = clock
        self._gap_s = gap_s
        self._began = clock()
        self._first: float | None = None
        self._open: dict[str, int] = defaultdict(int)
        self._since: dict[str, float] = {}
        self._busy_s: dict[str, float] = defaultdict(float)
        self._last: dict[str, Busy] = {}
        self._done: list[Busy] = []

    def on_call(self, engine: str, begins: bool) -> None:
        now = self._clock() - self._began
        if begins:
            self._first = now if self._first is None else self._first
            self._open[engine] += 1
            self._since.setdefault(engine, now)
            return
        self._open[engine] -= 1
        if not self._open[engine]:
            self._close(engine, self._since.pop(engine), now)

    def _close(self, engine: str, begins_s: float, ends_s: float) -> None:
        self._busy_s[engine] += ends_s - begins_s
        last = self._last.get(engine)
        if last is not None and begins_s - last.ends_s < self._gap_s:
            begins_s = last.begins_s
        elif last is not None:
            self._done.append(last)
        self._last[engine] = Busy(engine, begins_s, ends_s)

    def stretches(self, all_of_them: bool = False) -> list[Busy]:
        """Stretches that are over and were not handed out yet; all_of_them: also those that a call could lengthen."""
        found, self._done = self._done, []
        if all_of_them:
            found += self._last.values()
            self._last = {}
        return found

    def idle_share(self, engines: Iterable[str] = ()) -> Mapping[str, float]:
        """Per engine, the share of the time since the first call in which it had no call, in [0, 1]: 1 for those of
        `engines` that had none at all. Empty before the first call."""
        if self._first is None:
            return {}
        now = self._clock() - self._began
        span = now - self._first
        busy = {**dict.fromkeys(engines, 0.0), **self._busy_s}
        for engine, since in self._since.items():
            busy[engine] = busy.get(engine, 0.0) + now - since
        return {engine: round(max(0.0, 1.0 - s / span), 4) if span else 0.0 for engine, s in sorted(busy.items())}
