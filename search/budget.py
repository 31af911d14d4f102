"""Budgets of one search: how much may be spent, what was spent, and which limit binds first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace

from search.types import Expansion


@dataclass(frozen=True, slots=True)
class Budget:
    """Upper bounds of one search; None is unlimited.

    tokens: generated tokens. seconds: wall clock. expansions: engine orders. nodes: tree nodes below the root.
    verifications: verifier calls (one per judged path).
    """

    tokens: int | None = None
    seconds: float | None = None
    expansions: int | None = None
    nodes: int | None = None
    verifications: int | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is None:
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not number or (name != "seconds" and value != int(value)):
                kind = "a finite number" if name == "seconds" else "a whole number"
                raise ValueError(f"budget {name} must be {kind}, got {value!r}")
            if value <= 0:
                raise ValueError(f"budget {name} must be positive, got {value}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, float]) -> Budget:
        """Budget from keyword-like values; an unknown name is refused with the choices."""
        if not isinstance(values, Mapping):
            raise ValueError(f"budget must be a mapping such as {{'tokens': 1000}}, got {values!r}")
        known = [f.name for f in fields(cls)]
        for name in values:
            if name not in known:
                raise ValueError(f"unknown budget {name!r}; choices: {', '.join(known)}")
        return cls(**values)  # type: ignore[arg-type]


@dataclass(slots=True)
class Spent:
    """What a search has used so far, in the units of `Budget`."""

    tokens: int = 0
    seconds: float = 0.0
    expansions: int = 0
    nodes: int = 0
    verifications: int = 0


def binding(budget: Budget, spent: Spent) -> str | None:
    """Name of a limit that is used up, or None."""
    for name in ("tokens", "expansions", "nodes", "verifications", "seconds"):
        limit = getattr(budget, name)
        if limit is not None and getattr(spent, name) >= limit:
            return name
    return None


def unused(budget: Budget, spent: Spent) -> dict[str, float]:
    """What is left of each limit that was set."""
    left: dict[str, float] = {}
    for name, limit in asdict(budget).items():
        if limit is not None:
            left[name] = max(0, limit - getattr(spent, name))
    return left


def clip(budget: Budget, spent: Spent, wave: Sequence[Expansion]) -> list[Expansion | None]:
    """The wave cut down so that it cannot overspend; None stands for an order that must not be sent.

    The last expansions go first, then the last samples: nothing is sent that the tokens left may not suffice for up to
    its limit. Where they suffice for no sample at all, one is cut to what is left of them.
    """
    allowed: list[Expansion | None] = list(wave)
    if budget.expansions is not None:
        keep = budget.expansions - spent.expansions
        allowed = [order if i < keep else None for i, order in enumerate(allowed)]
    rooms = [
        limit - used
        for limit, used in ((budget.nodes, spent.nodes), (budget.verifications, spent.verifications))
        if limit is not None
    ]
    if rooms:
        allowed = _clip_samples(allowed, min(rooms))
    if budget.tokens is not None:
        allowed = _clip_tokens(allowed, budget.tokens - spent.tokens)
    if budget.seconds is not None:
        left = budget.seconds - spent.seconds
        allowed = [replace(order, deadline_s=left) if order else None for order in allowed]
    return allowed


def _clip_tokens(wave: Sequence[Expansion | None], room: int) -> list[Expansion | None]:
    """What could all be drawn to its limit; of a first order that could not be drawn even once, one cut sample."""
    kept: list[Expansion | None] = []
    left = room
    for order in wave:
        n = 0
        if order is not None:
            n = min(order.n, left // order.sampling.max_tokens) or int(left == room)
            left = max(left - n * order.sampling.max_tokens, 0) if n == order.n else 0
        kept.append(order.clipped(n, room) if order and n else None)
    return kept


def _clip_samples(wave: Sequence[Expansion | None], room: int) -> list[Expansion | None]:
    kept: list[Expansion | None] = []
    for order in wave:
        n = min(order.n, max(room, 0)) if order else 0
        kept.append(order.clipped(n, order.sampling.max_tokens) if order and n else None)
        room -= n
    return kept
