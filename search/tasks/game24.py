"""Game of 24 (as in Yao et al. 2023). Rows: numbers such as "4 4 6 8" under `numbers`, `question` or `Puzzles`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from search.checkers import Game24 as Checker
from search.tasks.base import Row, Task, text_of
from search.types import Boundary, Problem

_LINE = Boundary(delimiter="\n")


@dataclass(frozen=True)
class Game24(Task):
    """Many answers are right, so each problem has a checker and no reference. A step is a line."""

    name: ClassVar[str] = "game24"
    instruction: str = (
        "Combine two of the numbers at a time, one operation per line, and write which numbers are left. "
        "End with a line 'Answer:' followed by one expression that uses each given number exactly once."
    )
    boundary: Boundary = _LINE
    kind: str = "text"

    def problem(self, row: Row, where: str = "row") -> Problem:
        try:
            numbers = _numbers(row)
            text = f"Use the numbers {numbers} and the operations + - * / and brackets to get 24."
            return Problem(text, str(row.get("id") or ""), self.kind, None, Checker(numbers))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None


def _numbers(row: Row) -> str:
    found = row.get("numbers")
    if isinstance(found, list | tuple):
        return " ".join(map(str, found))
    numbers = re.findall(r"\d+", text_of(row, "numbers", "question", "Puzzles"))
    return " ".join(numbers)
