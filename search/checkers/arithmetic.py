"""Arithmetic with + - * / and brackets, read by a small parser; text is never evaluated as code.

sum = product (("+" | "-") product)*; product = factor (("*" | "/") factor)*; factor = "-" factor | "(" sum ")" | number
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction

_LONGEST = 200
_DEEPEST = 20
_TOKEN = re.compile(r"\s*(\d{1,9}|[-+*/()])")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_SPELLED = (
    ("\\times", "*"), ("\\cdot", "*"), ("\\div", "/"), ("\\left", ""), ("\\right", ""), ("×", "*"), ("·", "*"),
    ("∗", "*"), ("÷", "/"), ("−", "-"), ("–", "-"), ("[", "("), ("]", ")"), ("{", "("), ("}", ")"), ("$", ""),
)  # fmt: skip
_TIMES = re.compile(r"(?<=[\d)])\s*[xX]\s*(?=[\d(])")


@dataclass(frozen=True)
class Expression:
    """value: exact. numbers: every number that stands in it, in order."""

    value: Fraction
    numbers: tuple[int, ...]


def read(text: str) -> Expression | None:
    """The expression, or None where the text is none, divides by zero, or is longer or deeper than makes sense."""
    spelled = _FRACTION.sub(r"((\1)/(\2))", text)
    for shown, meant in _SPELLED:
        spelled = spelled.replace(shown, meant)
    spelled = _TIMES.sub("*", spelled).strip()
    if not spelled or len(spelled) > _LONGEST:
        return None
    tokens, at = [], 0
    while at < len(spelled):
        found = _TOKEN.match(spelled, at)
        if found is None:
            return None
        tokens.append(found[1])
        at = found.end()
    reader = _Reader(tokens)
    try:
        value = reader.sum(0)
    except (_NoExpressionError, ZeroDivisionError):
        return None
    return Expression(value, tuple(reader.numbers)) if reader.at == len(tokens) else None


class _NoExpressionError(Exception):
    """The tokens are no expression."""


@dataclass
class _Reader:
    tokens: list[str]
    at: int = 0
    numbers: list[int] = field(default_factory=list)

    def sum(self, depth: int) -> Fraction:
        value = self.product(depth)
        while (sign := self.take("+", "-")) is not None:
            other = self.product(depth)
            value = value + other if sign == "+" else value - other
        return value

    def product(self, depth: int) -> Fraction:
        value = self.factor(depth)
        while (sign := self.take("*", "/")) is not None:
            other = self.factor(depth)
            value = value * other if sign == "*" else value / other
        return value

    def factor(self, depth: int) -> Fraction:
        if depth > _DEEPEST:
            raise _NoExpressionError
        if self.take("-"):
            return -self.factor(depth + 1)
        if self.take("("):
            value = self.sum(depth + 1)
            if not self.take(")"):
                raise _NoExpressionError
            return value
        if self.at == len(self.tokens) or not self.tokens[self.at].isdigit():
            raise _NoExpressionError
        self.numbers.append(int(self.tokens[self.at]))
        self.at += 1
        return Fraction(self.numbers[-1])

    def take(self, *wanted: str) -> str | None:
        """The next token if it is one of these."""
        if self.at < len(self.tokens) and self.tokens[self.at] in wanted:
            self.at += 1
            return self.tokens[self.at - 1]
        return None
