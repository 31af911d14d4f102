"""The `calibrate` command: from problems to a calibration record. Exit codes as everywhere."""

from __future__ import annotations

import contextlib
import datetime
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer

from orchestrator.arguments import NOTHING_RAN, SOME_FAILED, USAGE, config_values
from orchestrator.calibration_plan import Plan, decide_all
from orchestrator.calibration_report import report
from orchestrator.config import Config, UsageError
from orchestrator.decision_log import DecisionLog
from orchestrator.problems import read_problems
from orchestrator.progress import Progress
from orchestrator.render import printable
from search.calibration.conclude import Question, TooFewDecisionsError, conclude, require_enough
from search.calibration.record import Loss, Setting, save
from search.types import Problem


def calibrate(
    data: Annotated[str, typer.Option(help="JSONL of problems: question, and answer where it is known")],
    out: Annotated[Path, typer.Option(help="the record; decisions go to a .decisions.jsonl beside it")],
    alpha: Annotated[float, typer.Option(help="highest loss rate per decision")] = 0.01,
    delta: Annotated[float, typer.Option(help="chance that the rate is higher all the same")] = 0.05,
    rule: Annotated[str, typer.Option(help="rule to find thresholds for: agreement or paper")] = "agreement",
    loss: Annotated[str, typer.Option(help="flip (another branch), or harm (flip away from a right one)")] = "flip",
    branches: Annotated[int, typer.Option(help="branches a problem")] = 8,
    max_tokens: Annotated[int, typer.Option(help="tokens of one branch, a whole solution", min=1)] = 256,
    seed: Annotated[int, typer.Option(help="seed of all random streams")] = 0,
    limit: Annotated[int | None, typer.Option(help="only the first rows", min=1)] = None,
    family: Annotated[str | None, typer.Option(help="name of the kind of problems (config family)")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of config keys")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="config key=value, may be repeated")] = None,
    model: Annotated[str | None, typer.Option(help="embedded, simulated, hub id, folder, or .gguf file")] = None,
    engines: Annotated[str | None, typer.Option(help="number of engines, or auto")] = None,
    runtime: Annotated[str | None, typer.Option(help="ray or inline")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:0, ...")] = None,
    verifier: Annotated[str | None, typer.Option(help="self_evaluation or confidence")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress")] = False,
) -> None:
    """Find thresholds that skip verification with a guaranteed loss rate (Learn-then-Test). Resumable."""
    named = {
        "family": family,
        "model": model,
        "engines": engines,
        "runtime": runtime,
        "device": device,
        "verifier": verifier,
    }
    drawn = {"branches": branches, "max_tokens": max_tokens, "seed": seed}
    asked = {"data": data, "alpha": alpha, "delta": delta, "rule": rule, "loss": loss, **drawn, "limit": limit}
    command = command_line({**asked, "config": config, **named, "out": out}, set_)
    try:
        plan = Plan(_question(rule, loss, alpha, delta), **drawn)
        values = plan.config_values(config_values(config, set_, named))
        problems = read_problems(data, Config.create(**values).kind)[:limit]
        code = _calibrate(plan, values, problems, out, command, quiet)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        code = USAGE
    raise typer.Exit(code)


def command_line(options: Mapping[str, Any], pairs: Sequence[str] | None) -> str:
    """The command that does the same again, for the record."""
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not None]
    return shlex.join(["python", "-m", "orchestrator", "calibrate", *words, *(f"--set={pair}" for pair in pairs or ())])


def _calibrate(
    plan: Plan, values: dict[str, Any], problems: Sequence[Problem], out: Path, command: str, quiet: bool
) -> int:
    different = plan.check(problems)
    if repeated := len(problems) - len(different):
        print(f"{repeated} repeated problems left out", file=sys.stderr)
    if out.is_dir() or not out.parent.is_dir():
        raise UsageError(f"--out {str(out)!r} must be a file in a folder that is there")
    log, setting, failed = _collect(plan, values, different, out.with_suffix(".decisions.jsonl"), quiet)
    if not log.decisions:
        return NOTHING_RAN
    try:
        require_enough(plan.question, len(log.decisions))
    except TooFewDecisionsError as error:
        print(f"error: {error}; the same command tries the missing ones again", file=sys.stderr)
        return SOME_FAILED
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    draw = plan.draw(Config.create(**values))
    record = conclude(plan.question, log.decisions, setting, draw, today, command)
    save(record, out)
    print(report(plan.question, log.decisions, record), f"record: {out}", sep="\n")
    return SOME_FAILED if failed else 0


def _collect(
    plan: Plan, values: dict[str, Any], problems: Sequence[Problem], path: Path, quiet: bool
) -> tuple[DecisionLog, Setting, int]:
    """The log with every decision that could be made, where they hold, and how many problems have none."""
    from orchestrator.orchestrator import Orchestrator

    progress = Progress(len(problems))
    # Ray prints messages of its own on standard output, which belongs to the results.
    with contextlib.redirect_stdout(sys.stderr), Orchestrator(**values) as orchestrator:
        log = DecisionLog(path, plan.settings(orchestrator.config, orchestrator.setting, problems))
        failed = 0
        with contextlib.nullcontext() if quiet else progress:
            for error in decide_all(orchestrator, plan, problems, log, None if quiet else progress.on_event):
                print(f"error: {printable(error[:500])}", file=sys.stderr)
                failed += 1
        return log, orchestrator.setting, failed


def _question(rule: str, loss: str, alpha: float, delta: float) -> Question:
    for name, value in (("alpha", alpha), ("delta", delta)):
        if not 0 < value < 1:
            raise UsageError(f"--{name} must be between 0 and 1, both excluded; got {value}")
    if loss not in get_args(Loss):
        raise UsageError(f"--loss must be one of {', '.join(get_args(Loss))}; got {loss!r}")
    return Question(rule, cast(Loss, loss), alpha, delta)
