"""Names of verify-skip rules; modules are imported only when a rule is created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from typing import Any

from search.cgee.base import SkipRule

_RULES = {
    "agreement": "search.cgee.agreement:Agreement",
    "calibrated": "search.cgee.calibrated:Calibrated",
    "off": "search.cgee.off:Off",
    "paper": "search.cgee.paper:Paper",
}
CALIBRATABLE = ("agreement", "paper")
"""Rules with a grid of thresholds that a calibration can choose from."""


def names() -> list[str]:
    return sorted(_RULES)


def create(name: str, **thresholds: Any) -> SkipRule:
    """A rule by name; an unknown name or threshold is refused with the choices."""
    cls = _rule_class(name)
    known = sorted(f.name for f in fields(cls) if f.init)
    for threshold in thresholds:
        if threshold not in known:
            raise ValueError(f"cgee rule {name!r} has no option {threshold!r}; choices: {', '.join(known) or 'none'}")
    try:
        rule: SkipRule = cls(**thresholds)
    except TypeError as error:
        raise ValueError(f"cgee rule {name!r}: {error}") from None
    return rule


def grid(name: str) -> list[Mapping[str, float]]:
    """Candidate thresholds of a rule, strict to loose."""
    if name not in CALIBRATABLE:
        raise ValueError(f"rule {name!r} cannot be calibrated; choices: {', '.join(CALIBRATABLE)}")
    candidates: list[Mapping[str, float]] = _rule_class(name).grid()
    return candidates


def _rule_class(name: str) -> Any:
    if name not in _RULES:
        raise ValueError(f"unknown cgee rule {name!r}; choices: {', '.join(names())}")
    module, _, attribute = _RULES[name].partition(":")
    return getattr(import_module(module), attribute)
