"""The `status` command: where the runs of a folder are, from their events alone, or what runs on the Ray cluster."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live

from orchestrator.arguments import NOTHING_RAN, USAGE
from orchestrator.batch.events import last_event
from orchestrator.batch.folder import Run, runs_of
from orchestrator.batch.output import read
from orchestrator.batch.places import is_remote
from orchestrator.batch.view import plain_line, table
from orchestrator.config import UsageError
from orchestrator.render import printable

_SILENT_S = 10.0


def status(
    out: Annotated[
        str | None,
        typer.Argument(metavar="[DIR]", help="folder or URL of `run --out`; the running cluster without one"),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="again every second, until all runs have ended")] = False,
    name: Annotated[str | None, typer.Option(help="only this run")] = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="the running Ray cluster: engines, index, driver")] = False,
) -> None:
    """Show where the runs of a folder are, or what runs on the Ray cluster."""
    if out is None or cluster:
        raise typer.Exit(_cluster(out, watch, name))
    try:
        if watch and is_remote(out):
            raise UsageError(f"--watch looks at a folder, {out!r} is a URL: what is there changes with uploads only")
        with read(out, events_only=True) as here:
            runs = runs_of(here, name)
            console = Console(highlight=False)
            if watch and console.is_terminal:
                _watch(runs, console)
            else:
                _print(runs, console, watch)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(USAGE) from None


def _cluster(out: str | None, watch: bool, name: str | None) -> int:
    """Print what runs on the cluster; the exit code."""
    from orchestrator.cluster import NoClusterError, look
    from orchestrator.cluster_status import lines_of

    if out is not None or watch or name is not None:
        given = repr(out) if out is not None else "--watch" if watch else f"--name {name}"
        print(f"error: {given} goes with the folder of a `run`, not with the cluster", file=sys.stderr)
        return USAGE
    try:
        with contextlib.redirect_stdout(sys.stderr):
            found = look()
    except NoClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return NOTHING_RAN
    for line in lines_of(found):
        print(printable(line))
    return 0


def state_of(run: Run, now: float) -> tuple[str, dict[str, Any] | None]:
    """ "running", "ended", "paused (reason)", or "silent for ..." for a run that may be dead; and the last progress."""
    try:
        last = last_event(run.events, frozenset({"begin", "progress", "end"}))
        progress = last_event(run.events, frozenset({"progress"}))
    except OSError:
        return "not begun", None
    if last is None:
        return "not begun", None
    if last["kind"] == "end":
        return ("ended" if last.get("stop") is None else f"paused ({last['stop']})"), progress
    silent = now - last["t"]
    return ("running" if silent < _SILENT_S else f"silent for {silent:.0f} s, killed?"), progress


def _print(runs: list[Run], console: Console, watch: bool) -> None:
    while True:
        states = [(run, *state_of(run, time.time())) for run in runs]
        for run, state, progress in states:
            line = run.name if progress is None else plain_line(run.name, progress)
            console.print(f"{line}; {state}", markup=False, soft_wrap=True)
        if not watch or not any(state == "running" for _, state, _ in states):
            return
        time.sleep(1.0)


def _watch(runs: list[Run], console: Console) -> None:
    with Live(console=console, refresh_per_second=4) as live:
        while True:
            states = [(run, *state_of(run, time.time())) for run in runs]
            parts: list[RenderableType] = []
            for run, state, progress in states:
                parts.append(f"{run.name}: {state}" if progress is None else table(f"{run.name}: {state}", progress))
            live.update(Group(*parts))
            if not any(state == "running" for _, state, _ in states):
                return
            time.sleep(1.0)
