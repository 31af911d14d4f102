"""Progress on standard error: a live line on a terminal, a plain line every few seconds otherwise."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.status import Status

from orchestrator.render import printable
from search.types import Event

_EVERY_S = 3.0


class Progress:
    """Give `on_event` to a solve; thread-safe, writes nothing after `__exit__`."""

    def __init__(self, problems: int, stream: TextIO | None = None) -> None:
        self._console = Console(file=stream or sys.stderr, highlight=False)
        self._problems = problems
        self._done = self._nodes = self._tokens = 0
        self._best: float | None = None
        self._began = self._printed = time.monotonic()
        self._lock = threading.Lock()
        self._status: Status | None = None

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._status = self._console.status("starting engines")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def on_event(self, event: Event) -> None:
        with self._lock:
            if event.kind == "node":
                self._nodes += 1
                self._tokens += int(event.data["tokens"])
                score = event.data["score"]
                if score is not None:
                    self._best = max(self._best or 0.0, float(score))
            elif event.kind == "finish":
                self._done += 1
            elif event.kind == "warning":
                self._console.print(f"warning: {printable(str(event.data['text']))}", markup=False)
            self._show()

    def _show(self) -> None:
        if self._status is not None:
            self._status.update(self._line())
        elif time.monotonic() - self._printed >= _EVERY_S:
            self._printed = time.monotonic()
            self._console.print(self._line(), markup=False)

    def _line(self) -> str:
        seconds = max(time.monotonic() - self._began, 1e-9)
        best = "" if self._best is None else f", best score {self._best:.3f}"
        return (
            f"problem {min(self._done + 1, self._problems)}/{self._problems}, {self._nodes} nodes, "
            f"{self._tokens} tokens, {self._tokens / seconds:.0f} tok/s{best}"
        )
