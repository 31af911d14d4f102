"""RSBCM actor: the global block index and the placement of branches. Plain; `actors.remote` wraps it for Ray."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from actors import messages
from actors.block_index import Ack, BlockIndex
from actors.placement import Branch, Load, Placed, home, place

_TREES = 4096
_NEAR = 0.75
"""Cosine of sketches from which a root counts as near: two problems in one template stay below it."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """One wave of one tree to place. signature: the sketch of its prompt, empty where near roots are of no use."""

    tree: str
    branches: tuple[Branch, ...]
    loads: Mapping[str, Load]
    rows_per_engine: int
    signature: bytes = b""


@dataclass(frozen=True, slots=True)
class Scored:
    """Score and depth of the segment that ends at `key`."""

    key: bytes
    score: float
    depth: int


class RSBCM:
    """Losing this actor costs time, not answers: engines send snapshots to a new one when it asks."""

    def __init__(self) -> None:
        self.index = BlockIndex()
        self._homes: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._counts = {"batches": 0, "waves": 0, "branches": 0, "bad_messages": 0, "semantic_home": 0}

    def apply(self, data: bytes) -> Ack | str:
        """Take one packed event batch of an engine; "resync" asks the sender for a snapshot."""
        try:
            batch = messages.unpack(data)
        except messages.BadMessageError:
            self._counts["bad_messages"] += 1
            return "bad"
        self._counts["batches"] += 1
        return self.index.apply(batch)

    def assign(self, wave: Assignment) -> list[Placed]:
        """Engine and predicted hit for every branch of the wave, with the terms of the decision."""
        rows = sum(branch.rows for branch in wave.branches)
        previous = self._homes.pop(wave.tree, None) or self._near(wave)
        trees = Counter(actor for homes in self._homes.values() for actor in (*homes, *homes[:1]))
        homes = home(rows, wave.loads, wave.rows_per_engine, previous, trees)
        self._homes[wave.tree] = homes
        while len(self._homes) > _TREES:
            self._homes.popitem(last=False)
        self._counts["waves"] += 1
        self._counts["branches"] += len(wave.branches)
        return place(
            wave.branches,
            wave.loads,
            lambda actor, branch: self.index.held(actor, branch.keys, branch.ends),
            homes,
            rows_per_engine=wave.rows_per_engine,
        )

    def _near(self, wave: Assignment) -> tuple[str, ...]:
        """Where a new tree's home should be: an engine with a near root that is not busier than a whole engine's rows
        more than the least busy one. It counts as `semantic_home`, never as a hit."""
        if not wave.signature:
            return ()
        least = min(load.rows for load in wave.loads.values())
        free = [actor for actor, load in wave.loads.items() if load.rows < least + wave.rows_per_engine]
        found = self.index.nearest(wave.signature, free, _NEAR)
        self._counts["semantic_home"] += found is not None
        return () if found is None else (found,)

    def note_scores(self, scores: Sequence[Scored]) -> None:
        for item in scores:
            self.index.note_score(item.key, item.score, item.depth)

    def forget(self, actor: str) -> None:
        """The engine died; what it held is gone."""
        self.index.forget(actor)

    def end_tree(self, tree: str) -> None:
        self._homes.pop(tree, None)

    def stats(self) -> dict[str, Any]:
        return {**self.index.stats(), **self._counts, "trees": len(self._homes)}
