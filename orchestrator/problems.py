"""Problems from the command line: a text, or a file of one (.txt) or many (.jsonl with `question`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.config import UsageError
from search.types import Problem

_FILES = (".txt", ".jsonl")
_TABLES = (".json", ".csv", ".tsv", ".gz", ".parquet")
_NOT_TEXTS = (*_FILES, *_TABLES, ".yaml", ".yml", ".md")


def read_problems(argument: str, kind: str = "auto") -> list[Problem]:
    """One problem from a text or text file, or a problem per line of a JSONL file; UsageError tells what is wrong."""
    if not argument.strip():
        raise UsageError("problem is empty: give a text, or the path of a .txt or .jsonl file")
    path = _path(argument)
    if path is None:
        return [_problem(argument, "", kind, None, "problem")]
    if path.suffix.lower() in _TABLES:
        raise UsageError(
            f"file {argument!r} is not read here: give a text, a .txt file (one problem), or a .jsonl file (many); "
            "`run` reads .jsonl, .jsonl.gz, .csv and .parquet"
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"file {argument!r} is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise UsageError(f"file {argument!r} cannot be read: {error.strerror}") from None
    if path.suffix.lower() == ".jsonl":
        rows = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
        if not rows:
            raise UsageError(f"file {argument!r} has no rows")
        return [_row(line, f"{argument}:{n}", kind) for n, line in rows]
    return [_problem(text, "", kind, None, f"file {argument!r}")]


def parsed(text: str) -> Any:
    """A row's JSON; ValueError says in a few words why it is none, or none that can be read."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(error.msg) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError:  # of `int`
        raise ValueError("a number has too many digits") from None


def _path(argument: str) -> Path | None:
    """The file that is meant, or None for a text; something that looks like a file but is none is refused."""
    path = Path(argument)
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except (OSError, ValueError):  # too long for a path, or with a zero byte: a text
        return None
    if is_file:
        return path
    if is_folder:
        raise UsageError(f"{argument!r} is a folder; give a text, or a {' or '.join(_FILES)} file")
    if path.suffix.lower() in _NOT_TEXTS and not any(c.isspace() for c in argument):
        raise UsageError(f"no such file: {argument!r}")
    return None


def _row(line: str, where: str, kind: str) -> Problem:
    try:
        row = parsed(line)
    except ValueError as error:
        raise UsageError(f"{where} is not JSON: {error}") from None
    text = row.get("question", row.get("problem")) if isinstance(row, dict) else None
    if not isinstance(text, str):
        raise UsageError(f"{where} needs a text under 'question' (or 'problem')")
    row_id, reference = row.get("id"), row.get("answer")
    name = "" if row_id is None else str(row_id)
    known = reference is not None and str(reference).strip()
    return _problem(text, name, kind, str(reference) if known else None, where)


def _problem(text: str, problem_id: str, kind: str, reference: str | None, where: str) -> Problem:
    try:
        text.encode()
        return Problem(text, problem_id, kind, reference)
    except UnicodeEncodeError:
        raise UsageError(f"{where}: the text holds half a surrogate pair and cannot be written as UTF-8") from None
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
