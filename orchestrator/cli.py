"""Command line. Exit codes: 0 all fine, 1 some problems failed, 2 usage, 3 nothing could run, 75 paused."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.arguments import (
    INTERRUPTED,
    NOTHING_RAN,
    SOME_FAILED,
    USAGE,
    config_values,
    given,
    pairs,
    strategy_of,
)
from orchestrator.batch.command import run
from orchestrator.batch.status import status
from orchestrator.calibrate_command import calibrate
from orchestrator.compare_command import compare
from orchestrator.config import Config, UsageError
from orchestrator.drain_command import drain
from orchestrator.estimate_command import estimate
from orchestrator.report.command import diff, explain, export_command, report, show
from search.strategies.base import Strategy

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `rksc`, `python -m orchestrator` and `solve.py`."""
    try:
        app(list(arguments) if arguments is not None else None)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


@app.callback()
def _root() -> None:
    """Tree search for LLM reasoning on local models."""


@app.command()
def solve(
    problem: Annotated[list[str], typer.Argument(help="a text, or a .txt or .jsonl file; several words are joined")],
    strategy: Annotated[str, typer.Option(help="greedy, tot, mcts, beam, ..., or one you registered")] = "tot",
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="strategy option key=value, may be repeated")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of config keys")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="config key=value, may be repeated")] = None,
    model: Annotated[str | None, typer.Option(help="embedded, simulated, hub id, folder, or .gguf file")] = None,
    engines: Annotated[str | None, typer.Option(help="number of engines, or auto")] = None,
    runtime: Annotated[str | None, typer.Option(help="ray or inline")] = None,
    gpus_per_engine: Annotated[float | None, typer.Option(help="GPUs, or a share of one, for each engine")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:0, ...")] = None,
    verifier: Annotated[str | None, typer.Option(help="self_evaluation, vote, confidence, checker, ...")] = None,
    cgee: Annotated[str | None, typer.Option(help="skip verification: auto, off, paper, agreement, calibrated")] = None,
    cgee_record: Annotated[str | None, typer.Option(help="calibration record, for --cgee calibrated")] = None,
    seed: Annotated[int, typer.Option(help="seed of all random streams")] = 0,
    tokens: Annotated[int | None, typer.Option(help="budget: generated tokens")] = None,
    seconds: Annotated[float | None, typer.Option(help="budget: wall clock")] = None,
    expansions: Annotated[int | None, typer.Option(help="budget: engine orders")] = None,
    nodes: Annotated[int | None, typer.Option(help="budget: tree nodes")] = None,
    verifications: Annotated[int | None, typer.Option(help="budget: verifier calls")] = None,
    limit: Annotated[int | None, typer.Option(help="only the first rows of a file", min=1)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a problem on standard output")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress")] = False,
) -> None:
    """Solve a problem, or every problem of a file."""
    named = {
        "model": model,
        "engines": engines,
        "runtime": runtime,
        "gpus_per_engine": gpus_per_engine,
        "device": device,
        "verifier": verifier,
        "cgee": cgee,
        "cgee_record": cgee_record,
    }
    budget = {
        "tokens": tokens,
        "seconds": seconds,
        "expansions": expansions,
        "nodes": nodes,
        "verifications": verifications,
    }
    try:
        values = config_values(config, set_, named)
        code = _solve(
            " ".join(problem),
            strategy_of(strategy, pairs(option or [], "--option")),
            values,
            given(budget),
            seed,
            limit,
            as_json,
            quiet,
        )
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        code = USAGE
    raise typer.Exit(code)


def _solve(
    argument: str,
    strategy: Strategy,
    values: dict[str, Any],
    budget: dict[str, Any],
    seed: int,
    limit: int | None,
    as_json: bool,
    quiet: bool,
) -> int:
    from orchestrator.problems import read_problems

    kind = Config.create(**values).kind
    problems = read_problems(argument, kind)[:limit]
    from orchestrator.orchestrator import Orchestrator
    from orchestrator.progress import Progress
    from orchestrator.render import printable, render

    progress = Progress(len(problems))
    errors: list[str] = []
    out = sys.stdout
    # Ray prints messages of its own on standard output, which belongs to the results.
    shown = contextlib.nullcontext() if quiet else progress
    with contextlib.redirect_stdout(sys.stderr), Orchestrator(**values) as orchestrator, shown:
        sink = None if quiet else progress.on_event
        for result in orchestrator.solve_each(problems, strategy, budget=budget, seed=seed, on_event=sink):
            text = json.dumps(result.to_json(), ensure_ascii=False, allow_nan=False) if as_json else render(result)
            print(text, file=out, flush=True)
            if result.error is not None:
                errors.append(f"error: problem {result.problem.id}: {printable(result.error[:500])}")
    for error in errors:
        print(error, file=sys.stderr)
    return 0 if not errors else SOME_FAILED if len(errors) < len(problems) else NOTHING_RAN


app.command()(calibrate)
app.command()(compare)
app.command()(estimate)
app.command()(run)
app.command()(status)
app.command()(drain)
app.command()(report)
app.command()(show)
app.command()(explain)
app.command()(diff)
app.command("export")(export_command)
