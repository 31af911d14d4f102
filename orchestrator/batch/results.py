"""`results.jsonl` of a folder: one row a problem, appended as problems finish; several runs may share it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.batch.journal import StorageError
from orchestrator.config import UsageError
from search.cgee.base import SkipReport

MAX_LINE = 16 << 20
"""Most bytes of one line that is read back."""


class ResultsFile:
    """Rows of the run `name`, those of earlier processes included once `load` has read them; held by one process at a
    time.

    UsageError if the file cannot be used, or is held.
    `counts`: rows by "done" and "failed". `tokens`: generated for these rows in all. `skips`: what CGEE did in them.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.counts = {"done": 0, "failed": 0}
        self.graded = {"correct": 0, "wrong": 0}
        self._scores = {True: array("d"), False: array("d")}
        self.tokens = 0
        self.skips = SkipReport()
        self._finished: set[bytes] = set()
        self._broke: StorageError | None = None
        self._fd = -1
        with self._let_go_on_error():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._hold()

    def load(self, drop_errors: bool = False) -> None:
        """Read what is there. An unfinished last line is cut off, and with drop_errors this run's error rows are taken
        out. UsageError for a line that is no row."""
        with self._let_go_on_error():
            if drop_errors:
                self._rewrite()
            self._load()

    def __contains__(self, key: str) -> bool:
        return bytes.fromhex(key) in self._finished

    def append(self, key: str, row: Mapping[str, Any]) -> None:
        """Readable by others when this returns. StorageError if it cannot be written, and from then on: behind a part
        of a row there must be no other one; the next process cuts it off."""
        if self._broke is not None:
            raise self._broke
        line = json.dumps({**row, "run": self.name, "key": key}, ensure_ascii=False, allow_nan=False) + "\n"
        data = memoryview(line.encode("utf-8", "replace"))
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            self._broke = StorageError(error.errno, f"cannot write {str(self.path)!r}: {error.strerror}")
            raise self._broke from None
        self._note(key, row)

    def close(self) -> None:
        """Let the file go; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @contextlib.contextmanager
    def _let_go_on_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.close()
            raise UsageError(f"cannot write {str(self.path)!r}: {error.strerror}") from None
        except BaseException:
            self.close()
            raise

    def _hold(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise UsageError(
                    f"{str(self.path)!r} is being written by another run; wait for it, or take another --out"
                ) from None
            # A file system without locks: the user must see to it that only one run writes.

    def _load(self) -> None:
        size = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                size += len(line)
                row = _parsed(line, self.path, number)
                if row.get("run") == self.name:
                    self._note(str(row.get("key")), row)
        os.ftruncate(self._fd, size)

    def _note(self, key: str, row: Mapping[str, Any]) -> None:
        self._finished.add(bytes.fromhex(key))
        failed = row.get("error") is not None
        self.counts["failed" if failed else "done"] += 1
        for score, right in row.get("judged") or ():
            self._scores[bool(right)].append(float(score))
        if row.get("correct") is not None:
            self.graded["correct" if row["correct"] else "wrong"] += 1
        self.skips += skips_of(row)
        tokens = row.get("tokens")
        self.tokens += int(tokens.get("generated", 0)) if isinstance(tokens, dict) else 0

    @property
    def judged(self) -> list[tuple[float, bool]]:
        """(score, whether right) of all verified finished paths."""
        return [(score, right) for right, scores in self._scores.items() for score in scores]

    def _rewrite(self) -> None:
        """Take out this run's error rows: written aside, then put in place at once."""
        aside = self.path.with_suffix(".new")
        with aside.open("w", encoding="utf-8") as file:
            for row in read_results(self.path):
                if row.get("run") != self.name or row.get("error") is None:
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, self.path)
        self.close()
        self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND)
        self._hold()


def skips_of(row: Mapping[str, Any]) -> SkipReport:
    """What CGEE did in the search of a row, as far as its alarm goes; nothing for a row that does not say it."""
    told = row.get("skips")
    if not isinstance(told, dict):
        return SkipReport()
    flips, trials = told.get("flips"), told.get("trials")
    if not isinstance(flips, int) or not isinstance(trials, int) or not 0 <= flips <= trials:
        return SkipReport()
    return SkipReport(flips=flips, trials=trials, off=told.get("off") is True)


def read_results(path: Path) -> Iterator[dict[str, Any]]:
    """Whole rows of a results file, also while it is being written."""
    with path.open("rb") as file, contextlib.suppress(EOFError):
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                yield _parsed(line, path, number)


def _parsed(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line) if len(line) <= MAX_LINE else None
        if isinstance(row, dict):
            bytes.fromhex(str(row.get("key", "")))
            return row
    except ValueError:
        pass
    raise UsageError(f"{path}:{number} is no result row; repair or remove that line")
