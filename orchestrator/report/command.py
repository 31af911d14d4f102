"""Commands that look at what a batch left: `report`, `show`, `diff`, `export`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.arguments import USAGE
from orchestrator.batch.folder import Run, runs_of
from orchestrator.batch.journal import JournalError
from orchestrator.batch.output import read
from orchestrator.batch.places import RemoteFolder, is_remote
from orchestrator.config import UsageError
from orchestrator.placements import explain_text
from orchestrator.render import printable
from orchestrator.report.collect import tree_of
from orchestrator.report.compare import compare, lines_of
from orchestrator.report.export import FORMATS, export, find
from orchestrator.report.page import MAX_TREES, write_page
from orchestrator.report.terminal import tree_text


def report(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="folder or URL of `run --out`")],
    out: Annotated[Path | None, typer.Option(help="the file; DIR/report.html by default")] = None,
    name: Annotated[str | None, typer.Option(help="only this run")] = None,
    max_trees: Annotated[int, typer.Option(help="trees of each run that go into the file", min=0)] = MAX_TREES,
) -> None:
    """Make one offline HTML file: summary, plots, problems, trees, and why each answer won."""
    with _usage(), read(folder) as here:
        file = out or here / "report.html"
        make_report(here, file, name, max_trees)
        if out is None and is_remote(folder):
            RemoteFolder(folder).write("report.html", file.read_bytes())
            print(f"{folder.rstrip('/')}/report.html")
        else:
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


def show(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="folder or URL of `run --out`")],
    problem_id: Annotated[str, typer.Argument(metavar="ID", help="id of the problem")],
    name: Annotated[str | None, typer.Option(help="the run, where the folder has several")] = None,
) -> None:
    """Print the tree of one problem, and why its answer won."""
    with _usage(), read(folder) as here:
        print(tree_text(tree_of(find(_run(here, name), problem_id))))


def explain(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="folder or URL of `run --out`")],
    problem_id: Annotated[str, typer.Argument(metavar="ID", help="id of the problem")],
    node: Annotated[str, typer.Argument(metavar="NODE", help="id of a node, as `show` and the report name it")],
    name: Annotated[str | None, typer.Option(help="the run, where the folder has several")] = None,
) -> None:
    """Print why a node was grown on its engine: the placement, with every term of its cost."""
    with _usage(), read(folder) as here:
        run = _run(here, name)
        for line in explain_text(run, find(run, problem_id), node).splitlines():
            print(printable(line))


def diff(
    first: Annotated[str, typer.Argument(metavar="DIR1", help="folder or URL of `run --out`")],
    second: Annotated[str, typer.Argument(metavar="DIR2", help="another, or the same with other names")],
    name: Annotated[str | None, typer.Option(help="the run in DIR1")] = None,
    other: Annotated[str | None, typer.Option(help="the run in DIR2; as --name by default")] = None,
) -> None:
    """Compare two runs: answers that changed, tokens, seconds."""
    with _usage(), read(first) as one, read(second) as two:
        print("\n".join(lines_of(compare(_run(one, name), _run(two, other or name)))))


def export_command(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="folder or URL of `run --out`")],
    kind: Annotated[str, typer.Option("--format", help=", ".join(FORMATS))],
    out: Annotated[Path | None, typer.Option(help="the file; standard output by default")] = None,
    problem_id: Annotated[str | None, typer.Option("--id", help="only this problem; dot, svg and png need it")] = None,
    name: Annotated[str | None, typer.Option(help="the run, where the folder has several")] = None,
) -> None:
    """Write trees, trajectories for training, or a trace for Perfetto."""
    with _usage(), read(folder) as here:
        parts = export(_run(here, name), kind, problem_id)
        if kind == "png" and out is None:
            raise UsageError("a PNG is no text: give --out FILE")
        try:
            with contextlib.nullcontext(sys.stdout.buffer) if out is None else out.open("wb") as file:
                for part in parts:
                    file.write(part if isinstance(part, bytes) else part.encode("utf-8", "replace"))
        except OSError as error:
            where = "standard output" if out is None else repr(str(out))
            raise UsageError(f"cannot write {where}: {error.strerror}") from None


def _run(folder: Path, name: str | None) -> Run:
    runs = runs_of(folder, name)
    if len(runs) > 1:
        raise UsageError(f"{str(folder)!r} has several runs: {', '.join(run.name for run in runs)}; give --name")
    return runs[0]


@contextlib.contextmanager
def _usage() -> Iterator[None]:
    """Errors the user can mend as one line and exit code 2."""
    try:
        yield
    except (UsageError, JournalError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(USAGE) from None
