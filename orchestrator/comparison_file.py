"""The file of a comparison: settings first, then a record a line as soon as it is there, so that a run can go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from orchestrator.config import UsageError
from search.comparison import Record


class ComparisonFile:
    """path: None keeps nothing. A file with other settings is refused, naming them; a torn last line is cut off, and
    failed searches are tried again.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self._path = path
        self._settings = json.loads(json.dumps(settings))
        self._stream: TextIO | None = None
        self.done: dict[tuple[str, str], Record] = {}

    def __enter__(self) -> ComparisonFile:
        if self._path is None:
            return self
        kept = self._read(self._path) if self._path.exists() else [json.dumps({"settings": self._settings})]
        try:
            self._path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
            self._stream = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--out {str(self._path)!r} cannot be written: {error.strerror}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.close()

    def add(self, record: Record) -> None:
        if self._stream is not None:
            self._stream.write(json.dumps(record.to_json(), allow_nan=False) + "\n")
            self._stream.flush()

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
                record = Record.from_json(json.loads(line))
            except (ValueError, TypeError, KeyError):
                break
            if record.error is None:
                self.done[record.strategy, record.problem_id] = record
                kept.append(line)
        return kept
