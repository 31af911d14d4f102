"""The `compare` command: several strategies on the same problems with equal token budgets."""

from __future__ import annotations

import contextlib
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.arguments import NOTHING_RAN, PAUSED, SOME_FAILED, USAGE, config_values, pairs, strategy_of
from orchestrator.batch.journal import StorageError
from orchestrator.comparison_file import ComparisonFile
from orchestrator.comparison_table import table
from orchestrator.config import Config, UsageError
from orchestrator.progress import Progress
from orchestrator.report.comparison_plot import PLOTS
from orchestrator.task_problems import task_config, task_problems
from search.comparison import Comparison, Record
from search.types import Problem

_ALL = "greedy,self_consistency,best_of_n,beam,tot,mcts"


def compare(
    data: Annotated[str | None, typer.Option(help=".jsonl or .csv file of problems with answers")] = None,
    strategies: Annotated[str, typer.Option(help="names, separated by commas")] = _ALL,
    tokens: Annotated[int, typer.Option(help="budget of generated tokens, for each problem and strategy")] = 2048,
    baseline: Annotated[str, typer.Option(help="strategy that the others are tested against")] = "greedy",
    task: Annotated[str, typer.Option(help="plain, gsm8k, math, multiple_choice, game24 or reasoning_gym")] = "plain",
    task_option: Annotated[
        list[str] | None, typer.Option("--task-option", "-t", help="task option key=value, may be repeated")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="strategy.key=value, may be repeated")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of config keys")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="config key=value, may be repeated")] = None,
    model: Annotated[str | None, typer.Option(help="embedded, simulated, hub id, folder, or .gguf file")] = None,
    engines: Annotated[str | None, typer.Option(help="number of engines, or auto")] = None,
    runtime: Annotated[str | None, typer.Option(help="ray or inline")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:0, ...")] = None,
    verifier: Annotated[str | None, typer.Option(help="self_evaluation, vote, confidence, checker, command")] = None,
    seed: Annotated[int, typer.Option(help="seed of all random streams")] = 0,
    limit: Annotated[int | None, typer.Option(help="only the first rows, or how many to make", min=1)] = None,
    out: Annotated[Path | None, typer.Option(help="file of records; a run that was stopped goes on from it")] = None,
    plot: Annotated[Path | None, typer.Option(help="draw accuracy over tokens into this .html or .svg file")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress")] = False,
) -> None:
    """Compare strategies at equal token budgets: accuracy with intervals, cost, verifier, paired tests."""
    named = {
        "model": model,
        "engines": engines,
        "runtime": runtime,
        "device": device,
        "verifier": verifier,
    }
    try:
        if plot is not None:
            _require_plot(plot)
        chosen = chosen_strategies(strategies, baseline, option or [])
        asked, problems = task_problems(data, task, pairs(task_option or [], "--task-option"), limit, seed)
        if not any(problem.reference is not None or problem.checker is not None for problem in problems):
            raise UsageError("compare needs problems with an 'answer' (or a task with a checker), got none")
        values = {**task_config(asked), **config_values(config, set_, named)}
        settings = {"data": data, "task": task, "tokens": tokens, "seed": seed, "strategies": chosen, "config": values}
        comparison = compared(problems, chosen, values, baseline, tokens, seed, ComparisonFile(out, settings), quiet)
        found = {"baseline": baseline, "tokens": tokens, "seed": seed}
        rows = [line.to_json() for line in comparison.lines()]
        print(json.dumps({**found, "strategies": rows}, allow_nan=False) if as_json else table(comparison))
        if plot is not None:
            write_plot(plot, comparison, f"{tokens} tokens at most, {len(problems)} problems")
        failed = sum(line.failed for line in comparison.lines())
        every = sum(line.problems for line in comparison.lines())
        code = 0 if not failed else SOME_FAILED if failed < every else NOTHING_RAN
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        code = USAGE
    except StorageError as error:
        print(f"error: {error.strerror}; what is written counts, the same command goes on", file=sys.stderr)
        code = PAUSED
    raise typer.Exit(code)


def chosen_strategies(names: str, baseline: str, options: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Options of each strategy by name, the baseline first; everything is checked before an engine starts."""
    listed = [name.strip() for name in names.split(",") if name.strip()]
    chosen: dict[str, dict[str, Any]] = {name: {} for name in (baseline, *listed)}
    for key, value in pairs(options, "--option").items():
        name, dot, rest = key.partition(".")
        if not dot or name not in chosen:
            raise UsageError(f"--option takes strategy.key=value with one of {', '.join(chosen)}, got {key!r}")
        chosen[name][rest] = value
    for name, own in chosen.items():
        strategy_of(name, own)
    return chosen


def _require_plot(file: Path) -> None:
    if file.suffix not in PLOTS:
        raise UsageError(f"--plot takes a file that ends in {' or '.join(PLOTS)}, got {str(file)!r}")
    if not file.parent.is_dir():
        raise UsageError(f"--plot {str(file)!r} cannot be written: there is no folder {str(file.parent)!r}")


def write_plot(file: Path, comparison: Comparison, title: str) -> None:
    """Accuracy over tokens, in the form of the file's ending, one of `PLOTS`. UsageError if it cannot be written."""
    try:
        file.write_text(PLOTS[file.suffix](comparison.lines(), title), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--plot {str(file)!r} cannot be written: {error.strerror}") from None


def compared(
    problems: Sequence[Problem],
    strategies: Mapping[str, Mapping[str, Any]],
    values: Mapping[str, Any],
    baseline: str,
    tokens: int,
    seed: int,
    file: ComparisonFile,
    quiet: bool = True,
) -> Comparison:
    """All problems under all strategies (name -> options), strategy by strategy; what the file holds is not run again.

    values: config keys. tokens: budget of each search.
    """
    from orchestrator.orchestrator import Orchestrator

    Config.create(**values)
    if repeated := [id for id, count in Counter(problem.id for problem in problems).items() if count > 1]:
        raise UsageError(f"compare needs a different id for every problem, got {repeated[0]!r} more than once")
    comparison = Comparison(baseline)
    progress = Progress(len(problems) * len(strategies))
    shown = contextlib.nullcontext() if quiet else progress
    sink = None if quiet else progress.on_event
    # Ray prints messages of its own on standard output, which belongs to the result.
    with file, contextlib.redirect_stdout(sys.stderr), Orchestrator(**values) as orchestrator, shown:
        for name, options in strategies.items():
            left = [problem for problem in problems if not file.has(name, problem)]
            budget, strategy = {"tokens": tokens}, strategy_of(name, options)
            for found in orchestrator.solve_each(left, strategy, budget=budget, seed=seed, on_event=sink):
                file.add(Record.of(name, found), found.problem)
            for problem in problems:
                comparison.add(file.record(name, problem))
    return comparison
