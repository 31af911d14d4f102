"""Device: when the work that one engine was given ends. Prefills go first, then all rows decode as one batch."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Speeds:
    """prefill_rate: tokens/s. A decode step of r rows takes step_s + r * row_s; at most max_rows decode at once.

    link_rate: tokens/s of KV from another engine. rpc_s: seconds of a message one way. The defaults are of the order
    of an 8B model in bfloat16 on one GPU, links of 25 GB/s; they are assumptions, not measurements.
    """

    prefill_rate: float = 8000.0
    step_s: float = 0.015
    row_s: float = 0.0001
    max_rows: int = 256
    link_rate: float = 200_000.0
    rpc_s: float = 0.001

    def times(self, factor: float) -> Speeds:
        """The same device, `factor` times as fast."""
        return replace(
            self,
            prefill_rate=self.prefill_rate * factor,
            step_s=self.step_s / factor,
            row_s=self.row_s / factor,
        )


@dataclass(slots=True, eq=False)
class Work:
    """Tokens to prefill, then rows of these lengths. done: called with its share of the device's seconds, in prefill
    and in decode."""

    prefill: int
    lengths: Sequence[int]
    done: Callable[[float, float], None]
    prefill_s: float = 0.0
    decode_s: float = 0.0
    open: int = 0


class Device:
    """Between two events its speed is constant, so time passes in as few timers as there are events."""

    def __init__(self, loop: asyncio.AbstractEventLoop, speeds: Speeds) -> None:
        self.loop = loop
        self.speeds = speeds
        self.busy_s = 0.0
        self._prefills: deque[Work] = deque()
        self._rows: list[tuple[int, Work]] = []
        self._steps = self._planned = 0
        self._decoding_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, work: Work) -> None:
        work.open = len(work.lengths)
        self._prefills.append(work)
        if self._timer is None:
            self._next()
        elif self._decoding_since is not None and self._fits(self._prefills[0]):
            self._end_step(self._timer, self._decoding_since)

    def stop(self) -> None:
        """The engine dies: nothing that it was given ends."""
        if self._timer is not None:
            self._timer.cancel()
        self._prefills.clear()
        self._rows.clear()

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    @property
    def _step_s(self) -> float:
        return self.speeds.step_s + len(self._rows) * self.speeds.row_s

    def _fits(self, work: Work) -> bool:
        return not self._rows or len(self._rows) + len(work.lengths) <= self.speeds.max_rows

    def _next(self) -> None:
        now = self.loop.time()
        self._timer = self._decoding_since = None
        if self._prefills and self._fits(self._prefills[0]):
            work = self._prefills.popleft()
            self._timer = self._at(now + work.prefill / self.speeds.prefill_rate, lambda: self._prefilled(work, now))
        elif self._rows:
            self._decoding_since = now
            self._planned = min(last for last, _ in self._rows) - self._steps
            self._timer = self._at(now + self._planned * self._step_s, self._decoded)

    def _at(self, when_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return self.loop.call_at(when_s, call)

    def _end_step(self, timer: asyncio.TimerHandle, since: float) -> None:
        """Somebody waits: stop decoding when the step under way ends."""
        timer.cancel()
        under_way = max(math.ceil((self.loop.time() - since) / self._step_s - 1e-6), 0)
        self._planned = min(under_way, self._planned)
        self._timer = self._at(since + self._planned * self._step_s, self._decoded)

    def _prefilled(self, work: Work, since: float) -> None:
        work.prefill_s = self.loop.time() - since
        self.busy_s += work.prefill_s
        self._rows += [(self._steps + max(length, 1), work) for length in work.lengths]
        self._next()

    def _decoded(self) -> None:
        self._steps += self._planned
        seconds = self._planned * self._step_s
        self.busy_s += seconds
        for _, work in self._rows:
            work.decode_s += seconds / len(self._rows)
        ended = [work for last, work in self._rows if last <= self._steps]
        self._rows = [row for row in self._rows if row[0] > self._steps]
        self._next()
        for work in ended:
            work.open -= 1
            if not work.open:
                work.done(work.prefill_s, work.decode_s)
