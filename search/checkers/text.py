"""Answers that are right letter by letter, or by a pattern."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LONGEST = 1000


@dataclass(frozen=True)
class Exact:
    """Right if equal to the reference, white space at the ends aside."""

    reference: str

    def __call__(self, answer: str) -> bool:
        return answer.strip() == self.reference.strip()


@dataclass(frozen=True)
class Pattern:
    """Right if the reference, a regular expression, matches the whole answer.

    Answers of more than 1,000 characters are wrong, which bounds what a costly pattern can do.
    """

    reference: str

    def __post_init__(self) -> None:
        try:
            re.compile(self.reference)
        except re.error as error:
            raise ValueError(f"checker regex: {self.reference!r} is no regular expression: {error}") from None

    def __call__(self, answer: str) -> bool:
        text = answer.strip()
        return len(text) <= _LONGEST and re.fullmatch(self.reference, text) is not None
