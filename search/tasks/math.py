"""MATH (Hendrycks et al. 2021): competition problems. Rows: `problem`, and `answer` or a boxed one in `solution`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from search.tasks.base import Row, Task, first_of


@dataclass(frozen=True)
class Math(Task):
    """Answers are compared by value: fractions, sets, intervals, expressions."""

    name: ClassVar[str] = "math"
    instruction: str = (
        "Think step by step. Write each step as one short paragraph and separate the steps by a blank line. "
        "Put the final answer in \\boxed{}."
    )
    kind: str = "math"

    def reference(self, row: Row) -> str | None:
        found = first_of(row, "answer", "solution")
        return None if found is None else str(found)
