"""GSM8K (Cobbe et al. 2021): grade-school word problems. Rows: `question`, `answer` that ends with `#### 18`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from search.tasks.base import Task


@dataclass(frozen=True)
class GSM8K(Task):
    """The answer is a number; a plain number as `answer` will do."""

    name: ClassVar[str] = "gsm8k"
    instruction: str = (
        "Think step by step. Write each step as one short paragraph and separate the steps by a blank line. "
        "End with a line 'Answer:' followed by the number only."
    )
    kind: str = "number"
