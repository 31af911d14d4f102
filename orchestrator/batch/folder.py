"""What a folder of `--out` holds, for commands that look at it: its runs, their rows, and the journal of a row."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.batch.events import read_events
from orchestrator.batch.journal import JournalContent, journal_path, read_journal
from orchestrator.batch.results import read_results
from orchestrator.batch.settings import read_run
from orchestrator.config import UsageError


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a folder. settings: under which it was begun. source: its input as it was given."""

    out: Path
    name: str
    settings: dict[str, Any]
    source: str

    @property
    def folder(self) -> Path:
        return self.out / "runs" / self.name

    @property
    def events(self) -> Path:
        return self.folder / "events.jsonl"

    def happened(self, kinds: frozenset[str]) -> Iterator[dict[str, Any]]:
        """Events of these kinds, oldest first. UsageError at once if none were kept."""
        if not self.events.is_file():
            raise UsageError(f"run {self.name!r} has no {self.events.name}, which says what happened when")
        return read_events(self.events, kinds)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Result rows in the order in which they were finished."""
        for path in sorted(self.out.glob("results*.jsonl")):
            yield from (row for row in read_results(path) if row.get("run") == self.name)

    def journal(self, problem_id: str) -> JournalContent | None:
        """None if the problem has not grown anything that lasts."""
        path = journal_path(self.folder / "journal", problem_id)
        return read_journal(path) if path.is_file() else None

    def journals(self) -> Iterator[JournalContent]:
        """Of all problems, half-grown ones too, in an order of no meaning. JournalError for one that cannot be read."""
        return (found for path in self.journal_paths() if (found := read_journal(path)) is not None)

    def journal_paths(self, without: Collection[str] = ()) -> Iterator[Path]:
        """Journals of all problems but those with these ids."""
        left_out = {journal_path(self.folder / "journal", problem_id) for problem_id in without}
        return (path for path in sorted((self.folder / "journal").glob("*/*.journal")) if path not in left_out)


def runs_of(out: Path, name: str | None = None) -> list[Run]:
    """The runs of a folder by name, or the one that is named. UsageError if there is none."""
    files = sorted(out.glob("runs/*/run.json"))
    if not files:
        raise UsageError(f"{str(out)!r} is no folder of `run --out`: it has no runs")
    names = [file.parent.name for file in files]
    if name is not None and name not in names:
        raise UsageError(f"{str(out)!r} has no run {name!r}; runs: {', '.join(names)}")
    found = []
    for run_name in names if name is None else [name]:
        run = read_run(out / "runs" / run_name)
        found.append(Run(out, run_name, run["settings"], str(run.get("input", ""))))
    return found
