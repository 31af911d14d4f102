"""Events of a run as JSONL: `{"v": 1, "t": unix seconds, "kind": ..., "problem": ..., ...}`; torn lines are skipped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.batch.journal import StorageError

SCHEMA = 1
MAX_LINE = 1 << 20
_MAX_TEXT = 2000
_PIECE = 1 << 18
_FLUSH_S = 0.5


class EventLog:
    """Appends to `path`. Node texts are left out: they are in the journals. StorageError if it cannot be written."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock
        self._flushed = 0.0
        try:
            self._file = path.open("a+", encoding="utf-8", errors="replace")
            if self._file.tell():
                self._file.write("\n")  # what a crash left unfinished stays a line of its own
        except OSError as error:
            raise StorageError(error.errno, f"cannot write {str(path)!r}: {error.strerror}") from None

    def write(self, kind: str, problem_id: str | None = None, data: Mapping[str, Any] | None = None) -> None:
        now = self._clock()
        plain = {key: _short(value) for key, value in (data or {}).items() if not (kind == "node" and key == "text")}
        head = {"v": SCHEMA, "t": round(now, 3), "kind": kind, **({"problem": problem_id} if problem_id else {})}
        line = json.dumps({**head, **plain}, ensure_ascii=False, default=str)
        try:
            self._file.write(line + "\n")
            if now - self._flushed > _FLUSH_S or kind in ("begin", "progress", "end"):
                self._file.flush()
                self._flushed = now
        except OSError as error:
            raise StorageError(error.errno, f"cannot write {str(self.path)!r}: {error.strerror}") from None

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            raise StorageError(error.errno, f"cannot write {str(self.path)!r}: {error.strerror}") from None


def read_events(path: Path, kinds: frozenset[str] | None = None) -> Iterator[dict[str, Any]]:
    """Events of this schema, oldest first; other lines (torn, too long, of another version) are skipped."""
    marks = None if kinds is None else _marks(kinds)
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE):
            if marks is not None and not any(mark in line for mark in marks):
                continue
            event = _event(line)
            if event is not None and (kinds is None or event["kind"] in kinds):
                yield event


def last_event(path: Path, kinds: frozenset[str]) -> dict[str, Any] | None:
    """The newest event of these kinds; the file is read from its end, piece by piece."""
    marks, cut = _marks(kinds), b""
    with path.open("rb") as file:
        end = file.seek(0, 2)
        while end:
            begin = max(end - _PIECE, 0)
            file.seek(begin)
            lines = (file.read(end - begin) + cut).split(b"\n")
            cut, end = lines.pop(0)[:MAX_LINE] if begin else b"", begin
            for line in reversed(lines):
                event = _event(line) if any(mark in line for mark in marks) else None
                if event is not None and event["kind"] in kinds:
                    return event
    return None


def _marks(kinds: frozenset[str]) -> list[bytes]:
    """What lines of these kinds hold, found without parsing them."""
    return [f'"kind": "{kind}"'.encode() for kind in kinds]


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    known = isinstance(event, dict) and event.get("v") == SCHEMA and isinstance(event.get("kind"), str)
    return event if known else None


def _short(value: Any) -> Any:
    return value[:_MAX_TEXT] if isinstance(value, str) else value
