"""Problems from the command line: a text, or a file of one (.txt) or many (.jsonl with `question`)."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.config import UsageError
from search.types import Problem

_LONGEST_PATH = 1024


def read_problems(argument: str, kind: str = "auto") -> list[Problem]:
    """One problem from a text or text file, or a problem per line of a JSONL file; UsageError tells what is wrong."""
    if not argument.strip():
        raise UsageError("problem is empty: give a text, or the path of a .txt or .jsonl file")
    path = Path(argument) if len(argument) < _LONGEST_PATH and "\n" not in argument else None
    if path is None or not path.is_file():
        if path is not None and path.suffix in (".txt", ".jsonl"):
            raise UsageError(f"no such file: {argument!r}")
        return [_problem(argument, "", kind, None, "problem")]
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"file {argument!r} is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise UsageError(f"file {argument!r} cannot be read: {error.strerror}") from None
    if path.suffix == ".jsonl":
        rows = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
        if not rows:
            raise UsageError(f"file {argument!r} has no rows")
        return [_row(line, f"{argument}:{n}", kind) for n, line in rows]
    return [_problem(text, "", kind, None, f"file {argument!r}")]


def _row(line: str, where: str, kind: str) -> Problem:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(f"{where} is not JSON: {error.msg}") from None
    text = row.get("question", row.get("problem")) if isinstance(row, dict) else None
    if not isinstance(text, str):
        raise UsageError(f"{where} needs a text under 'question' (or 'problem')")
    reference = row.get("answer")
    return _problem(text, str(row.get("id", "")), kind, None if reference is None else str(reference), where)


def _problem(text: str, problem_id: str, kind: str, reference: str | None, where: str) -> Problem:
    try:
        return Problem(text, problem_id, kind, reference)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
