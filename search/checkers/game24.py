"""Game of 24: an expression that uses each number exactly once and has the value 24."""

from __future__ import annotations

import re
from dataclasses import dataclass

from search.checkers.arithmetic import read


@dataclass(frozen=True)
class Game24:
    """reference: the numbers, in any order, as a text such as "4 4 6 8". target: the value wanted."""

    reference: str
    target: int = 24

    def __post_init__(self) -> None:
        if len(self.numbers) < 2:
            raise ValueError(f"checker game24 needs at least 2 numbers, such as '4 4 6 8', got {self.reference!r}")

    @property
    def numbers(self) -> list[int]:
        return sorted(int(number) for number in re.findall(r"\d{1,9}", self.reference))

    def __call__(self, answer: str) -> bool:
        """`(8 - 4) * (7 - 1)`, with or without `= 24` behind it."""
        left, equals, right = answer.strip().rstrip(".").partition("=")
        if equals and right.strip() != str(self.target):
            return False
        found = read(left)
        return found is not None and found.value == self.target and sorted(found.numbers) == self.numbers
