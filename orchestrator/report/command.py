"""The `report` command: a folder of runs as one HTML file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.arguments import USAGE
from orchestrator.batch.folder import runs_of
from orchestrator.config import UsageError
from orchestrator.report.page import MAX_TREES, write_page


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="folder of `run --out`")],
    out: Annotated[Path | None, typer.Option(help="the file; DIR/report.html by default")] = None,
    name: Annotated[str | None, typer.Option(help="only this run")] = None,
    max_trees: Annotated[int, typer.Option(help="trees of each run that go into the file", min=0)] = MAX_TREES,
) -> None:
    """Make one offline HTML file: summary, plots, problems, trees, and why each answer won."""
    file = out or folder / "report.html"
    try:
        make_report(folder, file, name, max_trees)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(USAGE) from None
    print(file)


def make_report(folder: Path, file: Path, name: str | None = None, max_trees: int = MAX_TREES) -> None:
    """Write the report of a folder. UsageError if there is no run, or the file cannot be written."""
    runs = runs_of(folder, name)
    aside = file.with_name(file.name + ".new")
    try:
        with aside.open("w", encoding="utf-8", errors="replace") as out:
            write_page(runs, out, max_trees)
        os.replace(aside, file)
    except OSError as error:
        raise UsageError(f"cannot write {str(file)!r}: {error.strerror}") from None
