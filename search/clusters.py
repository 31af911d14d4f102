"""Steps that say the same thing, found without a model: by their numbers and last equation, or by their words."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_EQUATED = re.compile(r"=\s*\$?\s*(-?\d[\d.,]*)")
_WORD = re.compile(r"\w+")


def cluster_key(text: str) -> tuple[str, ...]:
    """Equal for steps with the same set of numbers and the same right side of their last equation.

    A step without numbers is known by its set of words.
    """
    numbers = sorted({number.rstrip(".,") for number in _NUMBER.findall(text)})
    if not numbers:
        return ("words", *sorted({word.casefold() for word in _WORD.findall(text)}))
    equated = _EQUATED.findall(text)
    return ("numbers", *numbers, "=", equated[-1].rstrip(".,") if equated else "")
