"""Placement of branches on engines: a pure function of what is held, how loaded engines are, and how fast.

For each branch and engine a, in seconds:
`J = wait + recompute + decode + mu * [a not in home] * L / prefill_rate`; the lowest J wins, ties go
to the first home.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

PREFILL_RATE = 400.0
STEP_S = 0.06
"""Speeds assumed of an engine before any is measured: a small model on one CPU core."""

Held = Callable[[str, "Branch"], int]
"""Tokens of a branch's path that an engine holds."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One expansion to place: prefix keys and ends (tokens) at each segment, sample rows, expected new tokens a row."""

    id: str
    keys: tuple[bytes, ...]
    ends: tuple[int, ...]
    rows: int
    new_tokens: int

    @property
    def length(self) -> int:
        return self.ends[-1] if self.ends else 0

    @property
    def root_length(self) -> int:
        return self.ends[0] if self.ends else 0


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine has to do already, and its measured rates (tokens/s of prefill, seconds a decode step)."""

    prefill_tokens: int = 0
    rows: int = 0
    prefill_rate: float = PREFILL_RATE
    step_s: float = STEP_S


@dataclass(frozen=True, slots=True)
class Placed:
    """Decision for one branch with every term of its cost, in seconds."""

    id: str
    actor: str
    predicted_hit: int
    wait_s: float
    recompute_s: float
    decode_s: float
    away_s: float

    @property
    def cost_s(self) -> float:
        return self.wait_s + self.recompute_s + self.decode_s + self.away_s


@dataclass(slots=True)
class _Plan:
    """What one engine will have to do once the wave so far is placed on it."""

    prefill_tokens: int
    rows: int
    keys: set[bytes] = field(default_factory=set)

    def held(self, branch: Branch, held: int) -> int:
        """Held now, or to be held because an earlier branch of this wave goes there."""
        planned = (end for key, end in zip(branch.keys, branch.ends, strict=True) if key in self.keys)
        return max(held, *planned, 0)


def place(
    branches: Sequence[Branch],
    loads: Mapping[str, Load],
    held: Held,
    home: Sequence[str],
    *,
    rows_per_engine: int,
    mu: float = 12.0,
) -> list[Placed]:
    """Place a wave in order; each decision counts as load for the next."""
    plans = {actor: _Plan(load.prefill_tokens, load.rows) for actor, load in loads.items()}
    rank = {actor: position for position, actor in enumerate((*home, *(a for a in sorted(loads) if a not in home)))}
    placed = []
    for branch in branches:
        options = [
            _price(branch, actor, loads[actor], plan, held(actor, branch), actor in home, rows_per_engine, mu)
            for actor, plan in plans.items()
        ]
        best = min(options, key=lambda p: (p.cost_s, rank[p.actor]))
        plan = plans[best.actor]
        plan.prefill_tokens += branch.length - best.predicted_hit
        plan.rows += branch.rows
        plan.keys.update(branch.keys)
        placed.append(best)
    return placed


def home(
    rows: int,
    loads: Mapping[str, Load],
    rows_per_engine: int,
    previous: Sequence[str] = (),
    trees: Mapping[str, int] | None = None,
) -> tuple[str, ...]:
    """Engines a tree lives on: the ceil(ready rows / rows_per_engine) least loaded; former ones stay while needed.

    trees: how many trees live on each engine already (one that comes first there counts twice); it decides between
    equal loads.
    """
    size = min(max(math.ceil(rows / rows_per_engine), 1), len(loads))
    kept = [actor for actor in previous if actor in loads][:size]
    trees = trees or {}

    def busyness(actor: str) -> tuple[int, int, int, str]:
        return (loads[actor].rows, loads[actor].prefill_tokens, trees.get(actor, 0), actor)

    others = sorted((actor for actor in loads if actor not in kept), key=busyness)
    return (*kept, *others[: size - len(kept)])


def _price(
    branch: Branch,
    actor: str,
    load: Load,
    plan: _Plan,
    held: int,
    at_home: bool,
    rows_per_engine: int,
    mu: float,
) -> Placed:
    """Terms of J. The root prefix goes to every home engine anyway and is left out of the comparison there."""
    hit = plan.held(branch, held)
    counted = max(hit, branch.root_length) if at_home else hit
    fullness = max((plan.rows + branch.rows) / rows_per_engine, 1.0)
    return Placed(
        id=branch.id,
        actor=actor,
        predicted_hit=hit,
        wait_s=plan.prefill_tokens / load.prefill_rate,
        recompute_s=(branch.length - counted) / load.prefill_rate,
        decode_s=branch.new_tokens * load.step_s * fullness,
        away_s=0.0 if at_home else mu * branch.length / load.prefill_rate,
    )
