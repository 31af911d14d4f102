"""Progress of a job on standard error: a live table on a terminal, a plain line every few seconds otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.live import Live

from orchestrator.batch.view import plain_line, table
from orchestrator.render import printable
from search.types import Event

_EVERY_S = 3.0


class JobProgress:
    """Give `on_event` to a job; it writes nothing after `__exit__`."""

    def __init__(self, name: str, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._console = Console(file=stream or sys.stderr, highlight=False)
        self._clock = clock
        self._printed = clock()
        self._live: Live | None = None

    def __enter__(self) -> JobProgress:
        if self._console.is_terminal:
            self._live = Live("starting engines", console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def on_event(self, event: Event) -> None:
        if event.kind == "warning":
            self._print(f"warning: {event.data['text']}")
        elif event.kind == "row" and event.data.get("error"):
            self._print(f"error: problem {event.problem_id}: {str(event.data['error'])[:500]}")
        elif event.kind == "progress" and self._live is not None:
            self._live.update(table(self._name, event.data))
        elif event.kind == "progress" and self._clock() - self._printed >= _EVERY_S:
            self._printed = self._clock()
            self._print(plain_line(self._name, event.data))

    def _print(self, text: str) -> None:
        self._console.print(printable(text), markup=False, soft_wrap=True)
