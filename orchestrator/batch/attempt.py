"""One row of a job to its result row: checks, search behind a journal, tries again where engines failed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.batch.inputs import Row
from orchestrator.batch.journal import Journal, StorageError, journal_path
from orchestrator.batch.results import skips_of
from orchestrator.config import UsageError
from search.driver import TreeSearch
from search.result import SearchResult
from search.types import Problem
from search.verifiers.sound import from_outside
from search.wave_log import WaveRecord

if TYPE_CHECKING:
    from orchestrator.orchestrator import Orchestrator

_MAX_ERROR = 2000


class PausedError(Exception):
    """The job pauses: the search ends behind a wave that is on disk."""


class Attempt:
    """folder: of journals. after: called behind each wave on disk; raises PausedError to put the row off."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        search: TreeSearch,
        folder: Path,
        fingerprint: str,
        after: Callable[[WaveRecord], None],
    ) -> None:
        self._orchestrator = orchestrator
        self._search = search
        self._folder = folder
        self._fingerprint = fingerprint
        self._after = after

    async def row(self, row: Row, retries: int) -> dict[str, Any]:
        """The result row, an error row for what cannot be solved. Raises PausedError and StorageError only."""
        if row.problem is None:
            return error_row(row, row.error or "no problem", "bad_row")
        try:
            self._orchestrator.check_lengths([row.problem], self._search.strategy)
            journal = self._journal(row.problem)
            result = await self._tried(row, row.problem, journal, retries)
            json.dumps(result, allow_nan=False)  # a strategy of the user's may leave what no row can hold
            return result
        except UsageError as error:
            return error_row(row, str(error), "bad_row")
        except (PausedError, StorageError):
            raise
        except BaseException as error:  # code of the user's may raise anything
            if from_outside(error):
                raise
            return error_row(row, f"{type(error).__name__}: {error}", "broken")

    def _journal(self, problem: Problem) -> Journal:
        path = journal_path(self._folder, problem.id)
        try:
            return Journal(path, problem, self._fingerprint, self._search.seed, self._after)
        except OSError as error:
            raise StorageError(error.errno, f"cannot use {str(path)!r}: {error.strerror}") from None

    async def _tried(self, row: Row, problem: Problem, journal: Journal, retries: int) -> dict[str, Any]:
        tries = 0
        while True:
            if journal.finish is not None:
                return self._finished(journal.finish["row"])
            tries += 1
            result = await self._search.run(problem, journal)
            if result.error is None:
                done = result_row(result, journal.damage)
                await journal.close({"row": done, "tree": result.tree.to_json()})
                return done
            journal.discard()
            if tries > retries:
                return {**error_row(row, result.error, result.stop_reason), "tries": tries}

    def _finished(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row of an earlier process, which got no further than the journal; its audits count."""
        if self._search.gate is not None:
            self._search.gate.restore(skips_of(row))
        return dict(row)


def error_row(row: Row, error: str, reason: str) -> dict[str, Any]:
    """The row of a problem without a result. reason: bad_row, broken (user code raised) or failed (engines did)."""
    return {"id": row.id, "error": error[:_MAX_ERROR], "stop_reason": reason, "where": row.where}


def result_row(result: SearchResult, damage: str | None = None) -> dict[str, Any]:
    """A result without its tree, which is in the journal. damage: what was lost of the journal on the way."""
    row = {key: value for key, value in result.to_json().items() if key not in ("tree", "error")}
    if damage:
        row["warnings"] = [*row["warnings"], f"journal was damaged, what was whole was kept: {damage}"]
    return row
