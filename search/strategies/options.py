"""Checks of strategy options; every error names the option, the rule and the value."""

from __future__ import annotations

import math
from collections.abc import Sequence


def require_at_least(strategy: object, least: int, *names: str) -> None:
    """Raise ValueError for an integer option below `least`."""
    for name in names:
        value = getattr(strategy, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"option {name} must be an integer >= {least}, got {value!r}")


def require_number(strategy: object, low: float, high: float, *names: str) -> None:
    """Raise ValueError for an option that is no finite number in [low, high]."""
    for name in names:
        value = getattr(strategy, name)
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or not low <= value <= high:
            raise ValueError(f"option {name} must be a number in [{low:g}, {high:g}], got {value!r}")


def require_choice(strategy: object, name: str, choices: Sequence[str]) -> None:
    """Raise ValueError for an option that is none of `choices`."""
    value = getattr(strategy, name)
    if value not in choices:
        listed = f"{', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"
        raise ValueError(f"option {name} must be {listed}, got {value!r}")


def require_flag(strategy: object, *names: str) -> None:
    """Raise ValueError for an option that is neither true nor false."""
    for name in names:
        if not isinstance(getattr(strategy, name), bool):
            raise ValueError(f"option {name} must be true or false, got {getattr(strategy, name)!r}")
