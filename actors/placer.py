"""Places the waves of all trees: homes, loads and policies over time. Part of the index, and of a driver without."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from actors.homes import by_usefulness, home, home_size
from actors.link import MU, Link
from actors.loads import LoadBook
from actors.placement import (
    MAX_HOLDERS,
    Branch,
    Holders,
    Load,
    Placed,
    Wave,
)
from actors.policies import registry
from actors.policies.base import Policy

_TREES = 1 << 16
_SILENT_S = 600.0
"""A tree without a wave for so long brings no work any more, or is placed as a new one."""
_FOLLOWS = 0.05
_HYSTERESIS = 2.0
"""Prefills of a branch that an engine must have less to do for a tree to move there: a move costs each branch one."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """One wave of one tree to place. Without branches it only reports loads.

    loads: what changed on the driver's engines since its last assignment, None for one that cannot be used any more;
    whole: every engine it has. again: these were placed before, and the tree's other rows are where they are.
    signature: the sketch of its prompt, empty where near roots are of no use. driver: who asks. policy: see
    `actors.policies.registry`. mu, link, seed: see `actors.placement`.
    """

    tree: str
    branches: tuple[Branch, ...]
    loads: Mapping[str, Load | None]
    rows_per_engine: int
    signature: bytes = b""
    driver: str = ""
    whole: bool = True
    again: bool = False
    policy: str = registry.DEFAULT
    mu: float = MU
    link: Link | None = None
    seed: int = 0


@dataclass(slots=True)
class _Tree:
    """Where a tree lives, and its rows there in a wave."""

    home: tuple[str, ...]
    rows_each: float
    waves: int = 0
    seen_s: float = 0.0


Nearest = Callable[[Assignment, Sequence[str]], str | None]
"""An engine that holds a near root, of those given; None if there is none."""


class Placer:
    """holders: who is confirmed to hold a prefix."""

    def __init__(
        self,
        holders: Holders,
        nearest: Nearest | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.loads = LoadBook(clock)
        self.trees: OrderedDict[str, _Tree] = OrderedDict()
        self.counts = {"waves": 0, "branches": 0, "away": 0, "available_tokens": 0, "captured_tokens": 0}
        self._holders = holders
        self._nearest = nearest or (lambda wave, free: None)
        self._clock = clock
        self._policies: dict[str, Policy] = {}
        self._wave_rows = 0.0
        self._rows = 0.0

    def assign(self, asked: Assignment) -> list[Placed]:
        """A decision for every branch, in order; none at all if the driver has to report its loads whole."""
        if not self.loads.report(asked.driver, asked.loads, asked.whole) or not asked.branches:
            return []
        names = self.loads.names(asked.driver)
        if not names:
            return []
        policy = self._policy(asked.policy)
        tokens = sum(b.new_tokens for b in asked.branches) / len(asked.branches)
        self.loads.observe(tokens, asked.rows_per_engine)
        tree = self._settle(asked) if policy.uses_home else None
        wave = Wave(
            names,
            self.loads.actors,
            self._holders,
            tree.home if tree else (),
            rows_per_engine=asked.rows_per_engine,
            mu=asked.mu,
            link=asked.link if policy.uses_home else None,
            rivals={rival for actor in (tree.home if tree else ()) for rival in self.loads.rivals(actor)},
            seed=(asked.seed, asked.tree, tree.waves if tree else self.counts["waves"]),
        )
        decisions = policy.place(asked.tree, wave, asked.branches)
        self._count(decisions)
        return decisions

    def end_tree(self, name: str) -> None:
        for policy in self._policies.values():
            policy.end_tree(name)
        if (tree := self.trees.pop(name, None)) is not None:
            self._leave(tree)

    def stats(self) -> dict[str, int]:
        return {**self.counts, "trees": len(self.trees), "drivers": self.loads.drivers()}

    # -- homes -----------------------------------------------------------------------------------------------------
    def _settle(self, asked: Assignment) -> _Tree:
        """Where the tree lives from this wave on."""
        before = self.trees.pop(asked.tree, None)
        if before is not None:
            self._leave(before)
        rows: float = sum(branch.rows for branch in asked.branches)
        kept = before if asked.again else None
        if kept is not None:
            rows = max(rows, kept.rows_each * len(kept.home))
        size = home_size(rows, self._rows, asked.rows_per_engine, self.loads.width(asked.driver))
        previous = self._previous(asked, before)
        with closing(self.loads.lightest(asked.driver, previous[:size])) as lightest:
            # What the trees that began together will bring is not known before their second wave.
            margin_s = math.inf if before and not before.waves else self._margin_s(asked, previous)
            homes = home(size, previous, lightest, self.loads.busy_s, margin_s, self.loads.rivals)
        waves = before.waves + (kept is None) if before else 0
        if waves and kept is None:
            self._wave_rows += _FOLLOWS * (rows - self._wave_rows)
        # A new tree's first wave is small; engines are to be chosen for the waves that follow.
        expected = rows if waves else max(rows, self._wave_rows)
        now_s = self._clock()
        tree = self.trees[asked.tree] = _Tree(homes, expected / len(homes), waves, now_s)
        self._rows += expected
        for actor in homes:
            self.loads.settle(actor, tree.rows_each, 1)
        while len(self.trees) > _TREES or next(iter(self.trees.values())).seen_s < now_s - _SILENT_S:
            self._leave(self.trees.popitem(last=False)[1])
        return tree

    def _previous(self, asked: Assignment, before: _Tree | None) -> list[str]:
        """The tree's home and the engines that hold ends of its branches, those that hold most first: a home follows
        the KV of what is alive. For a new tree an engine with a near root."""
        ends = dict.fromkeys(key for branch in asked.branches for key in branch.keys[-1:])
        held = (actor for key in ends for actor in sorted(self._holders(key))[:MAX_HOLDERS])
        grown_on = (branch.grown_on for branch in asked.branches if branch.grown_on)
        found = dict.fromkeys((*(before.home if before else ()), *grown_on, *held))
        kept = [actor for actor in found if self.loads.usable(asked.driver, actor)]
        if not kept and asked.signature:
            near = self._nearest(asked, self._free(asked))
            kept = [near] if near is not None else []
        return by_usefulness(kept, asked.branches, self._holders) if len(kept) > 1 else kept

    def _free(self, asked: Assignment) -> list[str]:
        """Engines that are not busier than a whole engine's rows more than the least busy one."""
        names, actors = self.loads.names(asked.driver), self.loads.actors
        least = min(actors[name].rows for name in names)
        return [name for name in names if actors[name].rows < least + asked.rows_per_engine]

    def _margin_s(self, asked: Assignment, previous: Sequence[str]) -> float:
        """How much less an engine must have to do for a tree to move there."""
        if not previous:
            return 0.0
        length = sum(branch.length for branch in asked.branches) / len(asked.branches)
        return _HYSTERESIS * length / self.loads.actors[previous[0]].prefill_rate

    def _leave(self, tree: _Tree) -> None:
        self._rows = max(self._rows - tree.rows_each * len(tree.home), 0.0) if self.trees else 0.0
        for actor in tree.home:
            self.loads.settle(actor, -tree.rows_each, -1)

    # -- the rest --------------------------------------------------------------------------------------------------
    def _policy(self, name: str) -> Policy:
        if name not in self._policies:
            self._policies[name] = registry.create(name)
        return self._policies[name]

    def _count(self, decisions: Sequence[Placed]) -> None:
        self.counts["waves"] += 1
        self.counts["branches"] += len(decisions)
        for placed in decisions:
            self.counts["away"] += placed.away_s > 0
            self.counts["available_tokens"] += placed.available
            self.counts["captured_tokens"] += min(placed.predicted_hit, placed.available)
