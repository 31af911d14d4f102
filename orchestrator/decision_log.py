"""Decisions of a calibration under way, one a line, behind a line of settings: what makes `calibrate` resumable."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.config import UsageError
from search.calibration.decisions import Decision
from search.calibration.record import RecordError

_VERSION = 1


class DecisionLog:
    """Appends to `path`; with a file there already, `decisions` holds what it has.

    settings: JSON values that decide what the decisions are and what is asked of them. UsageError names the keys that
    differ from those the file was begun with, or the line that cannot be read. A torn last line is cut off.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.decisions: list[Decision] = []
        header = {"version": _VERSION, "settings": dict(settings)}
        try:
            whole = _whole_lines(path)
            if whole:
                self._check(whole[0], header)
                self.decisions = [self._read(line, n) for n, line in enumerate(whole[1:], 2)]
            else:
                self._append(header)
        except OSError as error:
            raise UsageError(f"file {str(path)!r} cannot be used: {error.strerror}") from None

    def add(self, decision: Decision) -> None:
        """On disk when this returns."""
        self._append(decision.to_json())
        self.decisions.append(decision)

    def _append(self, row: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _check(self, line: str, header: Mapping[str, Any]) -> None:
        found = self._json(line, 1)
        if not isinstance(found, dict) or found.get("version") != _VERSION or "settings" not in found:
            raise UsageError(f"{str(self.path)!r} was not begun by 'calibrate' of this version; remove it")
        there, here = found["settings"], json.loads(json.dumps(header["settings"]))
        keys = [key for key in sorted({*there, *here}) if there.get(key) != here.get(key)]
        if keys:
            text = "; ".join(f"{key}: there {there.get(key)!r}, here {here.get(key)!r}" for key in keys)
            raise UsageError(f"{str(self.path)!r} was begun with other settings: {text}; take another --out")

    def _read(self, line: str, number: int) -> Decision:
        try:
            return Decision.from_json(self._json(line, number), f"{self.path}:{number}")
        except RecordError as error:
            raise UsageError(str(error)) from None

    def _json(self, line: str, number: int) -> Any:
        try:
            return json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(f"{self.path}:{number} is not JSON: {error.msg}") from None


def _whole_lines(path: Path) -> list[str]:
    """Lines of the file up to its last line end; what follows it is cut off the file."""
    if not path.exists():
        return []
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end < len(data):
        with path.open("r+b") as file:
            file.truncate(end)
    return data[:end].decode("utf-8").split("\n")[:-1]
