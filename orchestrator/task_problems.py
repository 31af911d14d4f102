"""Problems of a task: rows of a .jsonl or .csv file, or generated ones; and the configuration that goes with them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.config import UsageError
from orchestrator.problems import parsed
from search import tasks
from search.tasks import Task
from search.tasks.reasoning_gym import ReasoningGym
from search.types import Problem

_GENERATED = 20


def task_problems(
    data: str | None, name: str, options: Mapping[str, Any], limit: int | None, seed: int
) -> tuple[Task, list[Problem]]:
    """The task and its problems, at most `limit`; UsageError says what is wrong and where.

    options: of reasoning-gym, `dataset` and what that data set takes; of other tasks, their own fields.
    """
    try:
        if name == ReasoningGym.name:
            return _generated(data, dict(options), limit, seed)
        task = tasks.create(name, **options)
    except TypeError as error:
        raise UsageError(f"task {name!r}: {error}") from None
    except (ValueError, ImportError) as error:
        raise UsageError(str(error)) from None
    if data is None:
        raise UsageError(f"task {name!r} needs --data, a .jsonl or .csv file")
    rows = _rows(data)[:limit]
    try:
        return task, [task.problem(row, f"{data}:{number}") for number, row in rows]
    except ValueError as error:
        raise UsageError(str(error)) from None


def task_config(task: Task) -> dict[str, Any]:
    """Config keys of a task: its prompt, how its answers are read, where its steps end."""
    return {
        "system": task.system,
        "instruction": task.instruction,
        "kind": task.kind,
        "step_delimiter": task.boundary.delimiter,
    }


def _generated(data: str | None, options: dict[str, Any], limit: int | None, seed: int) -> tuple[Task, list[Problem]]:
    if data is not None:
        raise UsageError(f"task 'reasoning_gym' makes its problems, leave out --data, got {data!r}")
    task = ReasoningGym(dataset=str(options.pop("dataset", ReasoningGym().dataset)))
    return task, task.generate(limit or _GENERATED, seed, **options)


def _rows(data: str) -> list[tuple[int, Mapping[str, Any]]]:
    """(line, row) of each row; a .csv file's first line names its columns."""
    path = Path(data)
    if path.suffix.lower() not in (".jsonl", ".csv"):
        raise UsageError(f"--data takes a .jsonl or .csv file, got {data!r}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"file {data!r} is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise UsageError(f"file {data!r} cannot be read: {error.strerror}") from None
    rows: list[tuple[int, Mapping[str, Any]]] = []
    if path.suffix.lower() == ".csv":
        rows += enumerate(csv.DictReader(io.StringIO(text)), 2)
    else:
        rows += [(number, _parsed(line, f"{data}:{number}")) for number, line in _lines(text)]
    if not rows:
        raise UsageError(f"file {data!r} has no rows")
    return rows


def _lines(text: str) -> list[tuple[int, str]]:
    return [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _parsed(line: str, where: str) -> Mapping[str, Any]:
    try:
        row = parsed(line)
    except ValueError as error:
        raise UsageError(f"{where} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise UsageError(f"{where} must be a JSON object, got a {type(row).__name__}")
    return row
