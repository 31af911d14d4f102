"""Outcomes of a problem's wave under way, beside its journal: a killed process then loses only the orders in flight.

A cache. It is written without syncing, and whatever is wrong with it costs work, never a result: what the machine's
failure tore off, or what belongs to another problem, is grown again.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from orchestrator.batch.frames import append_frames, read_frames
from orchestrator.batch.records import outcome_from, pack, to_plain, unpack
from search.types import Outcome


class LandedFile:
    """header: what the outcomes are for; outcomes of a file with another one are not taken."""

    def __init__(self, path: Path, header: bytes) -> None:
        self.path = path
        self._header = header
        self._size = 0
        self._usable = True
        self.outcomes = self._read() if path.exists() else {}

    def keep(self, outcome: Outcome) -> None:
        """Written when this returns, or never: a disk that is full is told by the journal."""
        if not self._usable:
            return
        try:
            if self._size == 0:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            records = [pack(to_plain(outcome))] if self._size else [self._header, pack(to_plain(outcome))]
            self._size = append_frames(self.path, records, self._size, sync=False)
        except (OSError, ValueError, TypeError, OverflowError):  # not a disk's error: values of a user's own engine
            self._usable = False

    def clear(self) -> None:
        """The wave is in the journal."""
        self.outcomes, self._size, self._usable = {}, 0, True
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _read(self) -> dict[str, Outcome]:
        try:
            frames = read_frames(self.path)
            if not frames.payloads or frames.payloads[0] != self._header:
                return {}
            found = [outcome_from(unpack(payload)) for payload in frames.payloads[1:]]
        except (OSError, ValueError):
            return {}
        self._size = frames.size
        return {outcome.expansion_id: outcome for outcome in found}
