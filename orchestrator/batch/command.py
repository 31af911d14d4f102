"""The `run` command. Exit codes as everywhere, and 75 for a job that paused: the same command goes on."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.arguments import NOTHING_RAN, PAUSED, SOME_FAILED, USAGE, config_values, given, pairs, strategy_of
from orchestrator.batch.inputs import Columns, Shard
from orchestrator.batch.job import JobOptions
from orchestrator.batch.journal import StorageError
from orchestrator.batch.live import JobProgress
from orchestrator.batch.stop import Stop
from orchestrator.batch.summary import BatchSummary
from orchestrator.config import UsageError
from search.strategies.base import Strategy


def run(
    source: Annotated[str, typer.Argument(metavar="INPUT", help=".jsonl, .jsonl.gz, .csv, .parquet, or a pattern")],
    out: Annotated[str, typer.Option(help="folder of results, journals and events, or a URL of one")],
    strategy: Annotated[str, typer.Option(help="greedy, tot, mcts, self_consistency, or one you registered")] = "tot",
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="strategy option key=value, may be repeated")
    ] = None,
    question: Annotated[str, typer.Option(help="column of the question")] = "question",
    answer: Annotated[str, typer.Option(help="column of the right answer, for `correct`")] = "answer",
    id_: Annotated[str, typer.Option("--id", help="column of the id; rows are numbered without one")] = "id",
    config: Annotated[Path | None, typer.Option(help="YAML file of config keys")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="config key=value, may be repeated")] = None,
    model: Annotated[str | None, typer.Option(help="embedded, simulated, hub id, folder, or .gguf file")] = None,
    engines: Annotated[str | None, typer.Option(help="number of engines, or auto")] = None,
    runtime: Annotated[str | None, typer.Option(help="ray or inline")] = None,
    concurrency: Annotated[int | None, typer.Option(help="problems in flight")] = None,
    verifier: Annotated[str | None, typer.Option(help="self_evaluation, confidence or none")] = None,
    cgee: Annotated[str | None, typer.Option(help="skip verification: auto, off, paper, agreement, calibrated")] = None,
    cgee_record: Annotated[str | None, typer.Option(help="calibration record, for --cgee calibrated")] = None,
    seed: Annotated[int, typer.Option(help="seed of all random streams")] = 0,
    tokens: Annotated[int | None, typer.Option(help="budget of a problem: generated tokens")] = None,
    timeout_per_problem: Annotated[float | None, typer.Option(help="budget of a problem: seconds")] = None,
    expansions: Annotated[int | None, typer.Option(help="budget of a problem: engine orders")] = None,
    nodes: Annotated[int | None, typer.Option(help="budget of a problem: tree nodes")] = None,
    job_tokens: Annotated[int | None, typer.Option(help="pause when the whole job has generated so many")] = None,
    job_seconds: Annotated[float | None, typer.Option(help="pause after so many seconds")] = None,
    limit: Annotated[int | None, typer.Option(help="only the first rows")] = None,
    shard: Annotated[str | None, typer.Option(help="i/n: only every n-th row from row i on, i from 0")] = None,
    retries: Annotated[int, typer.Option(help="more tries of a problem whose engines failed")] = 2,
    retry_errors: Annotated[bool, typer.Option(help="do rows again that failed before")] = False,
    name: Annotated[str | None, typer.Option(help="of this run in the folder; the strategy's by default")] = None,
    upload_s: Annotated[float, typer.Option(help="of an --out at a URL: seconds between uploads")] = 5.0,
    spool: Annotated[Path | None, typer.Option(help="of an --out at a URL: where files are meanwhile")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress")] = False,
) -> None:
    """Solve every row of a file into a folder. The same command again goes on where it was ended."""
    named = {
        "model": model,
        "engines": engines,
        "runtime": runtime,
        "concurrency": concurrency,
        "verifier": verifier,
        "cgee": cgee,
        "cgee_record": cgee_record,
    }
    budget = {"tokens": tokens, "seconds": timeout_per_problem, "expansions": expansions, "nodes": nodes}

    def work() -> BatchSummary:
        job = JobOptions(
            columns=Columns(question, answer, id_),
            limit=limit,
            shard=Shard() if shard is None else Shard.parse(shard),
            retries=retries,
            retry_errors=retry_errors,
            name=name,
            max_tokens=job_tokens,
            max_seconds=job_seconds,
            upload_s=upload_s,
            spool=spool,
        )
        values = config_values(config, set_, named)
        chosen = strategy_of(strategy, pairs(option or [], "--option"))
        return _run(source, out, chosen, values, job, {"budget": given(budget), "seed": seed}, quiet)

    raise typer.Exit(_code(work, quiet))


def _code(work: Callable[[], BatchSummary], as_json: bool) -> int:
    """The exit code of a job, once its summary, or what is wrong, is printed."""
    try:
        summary = work()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    except StorageError as error:
        print(f"error: {error.strerror or error}; what is written counts, the same command goes on", file=sys.stderr)
        return PAUSED
    print(json.dumps(summary.to_json()) if as_json else text_of(summary))
    return exit_code(summary)


def _run(
    source: str,
    out: str,
    strategy: Strategy,
    values: dict[str, Any],
    job: JobOptions,
    call: dict[str, Any],
    quiet: bool,
) -> BatchSummary:
    from orchestrator.orchestrator import Orchestrator

    progress = JobProgress(job.name or strategy.name)
    # Ray prints messages of its own on standard output, which belongs to the summary.
    shown = contextlib.nullcontext() if quiet else progress
    with contextlib.redirect_stdout(sys.stderr), Orchestrator(**values) as orchestrator, _signals() as halt, shown:
        sink = None if quiet else progress.on_event
        return orchestrator.run_batch(source, out, strategy, job=job, halt=halt, on_event=sink, **call)


def exit_code(summary: BatchSummary) -> int:
    """0 all rows have results, 1 some are errors, 3 all are, 75 the job paused."""
    if summary.stop is not None:
        return PAUSED
    return 0 if not summary.failed else SOME_FAILED if summary.failed < summary.rows else NOTHING_RAN


def text_of(summary: BatchSummary) -> str:
    """The summary in one line, and why the job paused in another."""
    graded = f", {summary.correct} of {summary.graded} correct" if summary.graded else ""
    graded += f", verifier AUC {summary.auc:.2f}" if summary.auc is not None else ""
    idle = sum(summary.idle.values()) / len(summary.idle) if summary.idle else 0.0
    line = (
        f"{summary.rows} rows, {summary.failed} failed, {summary.skipped} done before{graded}; "
        f"{summary.tokens} tokens in {summary.seconds:.1f} s, engines idle {idle:.0%} of it"
    )
    return line if summary.stop is None else f"{line}\npaused ({summary.stop}): the same command goes on"


@contextlib.contextmanager
def _signals() -> Iterator[Stop]:
    """A stop that SIGINT and SIGTERM set; the second one ends the process at once."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def pause(number: int, frame: object) -> None:
        stop.set("signal")
        for other, handler in former.items():
            signal.signal(other, handler)

    for number in former:
        signal.signal(number, pause)
    try:
        yield stop
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
