"""An event loop whose time is virtual: it jumps to the next timer instead of waiting for it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class StuckError(RuntimeError):
    """Every task waits for something that no timer will bring."""


class _Skipping(selectors.SelectSelector):
    """Looks at file descriptors without waiting and lets the loop's time pass instead."""

    passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise StuckError("the simulation waits for nothing: a task is stuck")
            self.passed_s += max(timeout, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs on one thread: what waits for another thread would be stuck."""

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.passed_s


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in virtual time, which begins at 0 s."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
