"""Names of strategies; modules are imported only when a strategy is created."""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from importlib import import_module
from inspect import signature
from typing import Any

from search.strategies.base import Strategy

_BUILT_IN = {
    "ab_mcts": "search.strategies.ab_mcts:ABMCTS",
    "beam": "search.strategies.beam:Beam",
    "best_of_n": "search.strategies.best_of_n:BestOfN",
    "dvts": "search.strategies.dvts:DVTS",
    "greedy": "search.strategies.greedy:Greedy",
    "mcts": "search.strategies.mcts:MCTS",
    "rebase": "search.strategies.rebase:Rebase",
    "self_consistency": "search.strategies.self_consistency:SelfConsistency",
    "tot": "search.strategies.tot:TreeOfThoughts",
}
_REGISTERED: dict[str, type[Strategy]] = {}


def register(cls: type[Strategy]) -> type[Strategy]:
    """Class decorator: make a strategy available under its `name`."""
    if not cls.name:
        raise ValueError(f"{cls.__name__} has no name")
    _REGISTERED[cls.name] = cls
    return cls


def names() -> list[str]:
    return sorted({*_BUILT_IN, *_REGISTERED})


def strategy_class(name: str) -> type[Strategy]:
    if name in _REGISTERED:
        return _REGISTERED[name]
    if name not in _BUILT_IN:
        raise ValueError(f"unknown strategy {name!r}{_nearest(name, names())}; choices: {', '.join(names())}")
    module, _, attribute = _BUILT_IN[name].partition(":")
    cls: type[Strategy] = getattr(import_module(module), attribute)
    return cls


def create(name: str, **options: Any) -> Strategy:
    """A strategy by name; unknown names and options are refused with the nearest match and the choices."""
    cls = strategy_class(name)
    known = option_names(cls)
    for option in options:
        if option not in known:
            hint = _nearest(option, known)
            raise ValueError(f"strategy {name!r} has no option {option!r}{hint}; choices: {', '.join(known)}")
    try:
        return cls(**options)
    except TypeError as error:
        raise ValueError(f"strategy {name!r}: {error}") from None


def option_names(cls: type[Strategy]) -> list[str]:
    """Options of a strategy: dataclass fields, or the parameters of another class's constructor."""
    if hasattr(cls, "__dataclass_fields__"):
        return sorted(f.name for f in fields(cls) if f.init)  # type: ignore[arg-type]
    return sorted(name for name in signature(cls).parameters if name not in ("args", "kwargs"))


def _nearest(name: str, known: list[str]) -> str:
    match = get_close_matches(name, known, 1)
    return f", did you mean {match[0]!r}?" if match else ""
