"""A task as a value, and rows to problems. A row with `question` and, if known, `answer` is all a task needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from search import checkers
from search.prompts import INSTRUCTION, SYSTEM
from search.types import Boundary, Problem

Row = Mapping[str, Any]
_BLANK_LINE = Boundary()


@dataclass(frozen=True)
class Task:
    """kind: how answers are read (`search.answers.extract`). instruction: what stands behind each question.

    Subclass it and override `question`, `reference` or `problem` for rows of another form; `name` makes it known to
    `search.tasks.register`. A row may name a checker of its own under `checker` (`search.checkers.names`).
    """

    name: ClassVar[str] = "plain"
    system: str = SYSTEM
    instruction: str = INSTRUCTION
    boundary: Boundary = _BLANK_LINE
    kind: str = "auto"

    def problem(self, row: Row, where: str = "row") -> Problem:
        """One problem; ValueError says where what is missing."""
        try:
            reference = self.reference(row)
            checker = None
            if row.get("checker") is not None:
                if reference is None:
                    raise ValueError(f"checker {row['checker']!r} needs an 'answer' to check against")
                checker = checkers.create(str(row["checker"]), reference)
            return Problem(self.question(row), _identity(row), self.kind, reference, checker)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None

    def problems(self, rows: Iterable[Row]) -> list[Problem]:
        """All rows; the first that does not fit is named by its number, from 1."""
        return [self.problem(row, f"row {number}") for number, row in enumerate(rows, 1)]

    def question(self, row: Row) -> str:
        return text_of(row, "question", "problem")

    def reference(self, row: Row) -> str | None:
        """The right answer, or a text that states it; None where it is not known."""
        answer = first_of(row, "answer")
        return None if answer is None else str(answer)


def first_of(row: Row, *names: str) -> Any:
    """The first of these fields that is neither missing, null nor a blank text; None where all are."""
    found = (row.get(name) for name in names)
    return next((value for value in found if value is not None and str(value).strip()), None)


def text_of(row: Row, *names: str) -> str:
    """The first of these fields that holds a text; ValueError names them."""
    for name in names:
        if isinstance(row.get(name), str):
            return str(row[name])
    wanted = " or ".join(map(repr, names))
    raise ValueError(f"needs a text under {wanted}, has {', '.join(map(repr, row)) or 'nothing'}")


def _identity(row: Row) -> str:
    """The row's own id; empty lets the problem's text name it."""
    found = row.get("id")
    return "" if found is None else str(found)
