"""The file of a comparison: settings first, then a record a line as soon as it is there, so that a run can go on."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from orchestrator.batch.journal import StorageError
from orchestrator.config import UsageError
from search.comparison import Record
from search.types import Problem


class ComparisonFile:
    """path: None keeps nothing. A file with other settings is refused, naming them; a torn last line is cut off, and
    failed searches are tried again. A record counts for the problem as it was: its id, text and right answer.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self._path = path
        self._settings = json.loads(json.dumps(settings))
        self._stream: TextIO | None = None
        self._records: dict[tuple[str, str], Record] = {}

    def __enter__(self) -> ComparisonFile:
        if self._path is None:
            return self
        kept = self._read(self._path) if self._path.exists() else [json.dumps({"settings": self._settings})]
        aside = self._path.with_name(f"{self._path.name}.new")
        try:
            aside.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
            os.replace(aside, self._path)
            self._stream = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--out {str(self._path)!r} cannot be written: {error.strerror}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            with contextlib.suppress(OSError):  # what could not be written was told by `add`
                self._stream.close()

    def has(self, strategy: str, problem: Problem) -> bool:
        return (strategy, _digest(problem)) in self._records

    def record(self, strategy: str, problem: Problem) -> Record:
        """Of this or of an earlier process; KeyError without one."""
        return self._records[strategy, _digest(problem)]

    def add(self, record: Record, problem: Problem) -> None:
        """StorageError if it cannot be written; what is there counts when the comparison goes on."""
        digest = _digest(problem)
        self._records[record.strategy, digest] = record
        if self._stream is None:
            return
        try:
            self._stream.write(json.dumps({**record.to_json(), "problem": digest}, allow_nan=False) + "\n")
            self._stream.flush()
        except OSError as error:
            raise StorageError(error.errno, f"cannot write {str(self._path)!r}: {error.strerror}") from None

    def _read(self, path: Path) -> list[str]:
        """Whole lines of an earlier run with the same settings."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            raise UsageError(f"--out {str(path)!r} cannot be read") from None
        try:
            settings = json.loads(lines[0])["settings"] if lines else None
        except (ValueError, KeyError, TypeError):
            settings = None
        if not isinstance(settings, dict):
            raise UsageError(f"--out {str(path)!r} is no file of a comparison; give another name")
        other = sorted(key for key in {*settings, *self._settings} if settings.get(key) != self._settings.get(key))
        if other:
            raise UsageError(
                f"--out {str(path)!r} was made with other settings: {', '.join(other)}; "
                "give another name or the same settings"
            )
        kept = [lines[0]]
        for line in lines[1:]:
            try:
                row = json.loads(line)
                digest = row.pop("problem")
                record = Record.from_json(row)
            except (ValueError, TypeError, KeyError, AttributeError):
                break
            if record.error is None:
                self._records[record.strategy, digest] = record
                kept.append(line)
        return kept


def _digest(problem: Problem) -> str:
    text = json.dumps((problem.id, problem.text, problem.reference))
    return blake2b(text.encode(), digest_size=8).hexdigest()
