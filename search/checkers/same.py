"""Answers that are right if they mean the same as the reference: numbers, expressions, letters."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from search.answers import canonical, equivalent, meant


@dataclass(frozen=True)
class _Same:
    """reference: the right answer, or a whole reply that states it; what is checked may be either, too."""

    reference: str

    def __call__(self, answer: str) -> bool:
        stated = meant(answer, self._kind), meant(self.reference, self._kind)
        return self._agree(answer, self.reference) or self._agree(*stated)

    @property
    def _kind(self) -> str:
        return "auto"

    def _agree(self, found: str, wanted: str) -> bool:
        return equivalent(found, wanted)


@dataclass(frozen=True)
class Math(_Same):
    """Expressions, sets, intervals and numbers by value (`search.answers.equivalent`)."""

    @property
    def _kind(self) -> str:
        return "math"


@dataclass(frozen=True)
class Choice(_Same):
    """The letter of a multiple-choice answer; several letters at once are wrong."""

    @property
    def _kind(self) -> str:
        return "choice"


@dataclass(frozen=True)
class Numeric(_Same):
    """Numbers by value. tolerance: largest relative difference that is still right, 0 is exact."""

    tolerance: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.tolerance < 1.0:
            raise ValueError(f"numeric tolerance must be in [0, 1), got {self.tolerance!r}")

    @property
    def _kind(self) -> str:
        return "number"

    def _agree(self, found: str, wanted: str) -> bool:
        if equivalent(found, wanted):
            return True
        values = _value(found), _value(wanted)
        if not self.tolerance or values[0] is None or values[1] is None:
            return False
        return abs(values[0] - values[1]) <= Fraction(self.tolerance) * abs(values[1])


def _value(text: str) -> Fraction | None:
    """The exact value behind the answer's key, without its unit."""
    try:
        return Fraction(canonical(text).split()[0])
    except (ValueError, IndexError, ZeroDivisionError):
        return None
