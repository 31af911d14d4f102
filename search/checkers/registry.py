"""Checkers by name, for rows of a file."""

from __future__ import annotations

from collections.abc import Callable

from search.checkers.game24 import Game24
from search.checkers.same import Choice, Math, Numeric
from search.checkers.text import Exact, Pattern
from search.types import Checker

_CHECKERS: dict[str, Callable[[str], Checker]] = {
    "choice": Choice,
    "exact": Exact,
    "game24": Game24,
    "math": Math,
    "numeric": Numeric,
    "regex": Pattern,
}


def names() -> list[str]:
    return sorted(_CHECKERS)


def create(name: str, reference: str) -> Checker:
    """A checker for one problem; ValueError names what is wrong and the choices."""
    if name not in _CHECKERS:
        raise ValueError(f"unknown checker {name!r}; choices: {', '.join(names())}")
    return _CHECKERS[name](reference)
