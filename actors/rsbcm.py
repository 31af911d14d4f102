"""RSBCM actor: the global block index and the placement of branches. Plain; `actors.remote` wraps it for Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from actors import messages
from actors.block_index import Ack, BlockIndex
from actors.placement import Placed
from actors.placer import Assignment as Assignment
from actors.placer import Placer

_NEAR = 0.75
"""Cosine of sketches from which a root counts as near: two problems in one template stay below it."""


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
        self.placer = Placer(lambda key: self.index.holders(key), self._near)
        self._counts = {"batches": 0, "bad_messages": 0, "semantic_home": 0}

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
        """Engine, predicted hit and every term of the decision for each branch of the wave, in order.

        No decision at all: this index does not know the driver's engines (it was restarted); send `loads` whole.
        """
        return self.placer.assign(wave)

    def _near(self, wave: Assignment, free: Sequence[str]) -> str | None:
        """Where a new tree's home should be: an engine with a near root, of those that are not busy. It counts as
        `semantic_home`, never as a hit."""
        found = self.index.nearest(wave.signature, free, _NEAR)
        self._counts["semantic_home"] += found is not None
        return found

    def note_scores(self, scores: Sequence[Scored]) -> None:
        for item in scores:
            self.index.note_score(item.key, item.score, item.depth)

    def forget(self, actor: str) -> None:
        """The engine died; what it held is gone."""
        self.index.forget(actor)

    def end_tree(self, tree: str) -> None:
        self.placer.end_tree(tree)

    def stats(self) -> dict[str, Any]:
        return {**self.index.stats(), **self._counts, **self.placer.stats()}
