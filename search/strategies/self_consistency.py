"""Self-consistency (Wang et al. 2023) that stops when the vote is decided.

Stopping: Beta posterior of the lead (adaptive consistency, Aggarwal et al. 2023), or a window of equal answers (ESC, Li
et al. 2024). Weights: one a sample, or its confidence. Pruning: samples whose confidence falls below a floor set by the
first ones end early and have no vote (DeepConf, Fu et al. 2025, arXiv 2508.15260, online mode).

Selection: the root. Expansion: independent full samples. Simulation: none. Backup: one vote per canonical answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from search.node import Node
from search.strategies.options import require_at_least, require_choice, require_number
from search.strategies.selection import Weight, poll, pooled
from search.strategies.whole import WholeSamples
from search.tree import SearchTree
from search.types import PruneRule, Sampling, Selection
from search.voting import beta_confidence


@dataclass(frozen=True, kw_only=True)
class SelfConsistency(WholeSamples):
    """stop: "beta" ends when P(the leader stays ahead of the runner-up) >= stop_at; "window" when `window` samples in a
    row, counted from the first, all state one answer; "none" draws every sample. Either rule waits until its answer
    leads the vote, and also ends a majority vote that the samples left cannot turn. vote: "majority" | "confidence".

    prune: 0 prunes nothing; else the quantile of the `warmup` first samples' lowest group confidence, a group being
    `group` tokens in a row, that every sample has to hold: 0.1 is DeepConf-high, 0.9 DeepConf-low.
    """

    name: ClassVar[str] = "self_consistency"
    judges: ClassVar[bool] = False
    stop: Literal["beta", "window", "none"] = "beta"
    stop_at: float = 0.95
    window: int = 4
    vote: Literal["majority", "confidence"] = "majority"
    prune: float = 0.0
    warmup: int = 4
    group: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice(self, "stop", ("beta", "window", "none"))
        require_choice(self, "vote", ("majority", "confidence"))
        require_at_least(self, 2, "window")
        require_number(self, 0.5, 1.0, "stop_at")
        require_number(self, 0.0, 1.0, "prune")
        require_at_least(self, 1, "warmup", "group")
        if self.prune and self.warmup >= self.samples:
            raise ValueError(f"option warmup must be below samples={self.samples} with prune, got {self.warmup!r}")
        if self.stop_at == 0.5:
            raise ValueError(f"option stop_at must be in (0.5, 1], got {self.stop_at!r}")

    @property
    def needs(self) -> frozenset[str]:
        weighed, pruned = self.vote == "confidence", self.prune > 0
        return frozenset({*(["confidence"] if weighed else ()), *(["prune"] if pruned else ())})

    def drawn_by(self, tree: SearchTree) -> Sampling:
        sampling = super().drawn_by(tree)
        return replace(sampling, prune=PruneRule(self.group, self.floor(tree))) if self.prune else sampling

    def due(self, asked: int) -> int:
        return self.warmup if self.prune and asked < self.warmup else self.samples

    def floor(self, tree: SearchTree) -> float | None:
        """What the lowest group of a sample must hold; None before the warm-up is told, or where it tells nothing."""
        if not self.prune or len(tree.told) < self.warmup:
            return None
        first = (node for node in tree.children(tree.root) if node.index < self.warmup)
        return _quantile(sorted(n.thought.lowest for n in first if n.thought.lowest is not None), self.prune)

    def voters(self, tree: SearchTree) -> list[Node]:
        """Finished samples that hold the floor, in canonical order; all of them where none does."""
        floor, finished = self.floor(tree), tree.complete()
        held = [n for n in finished if floor is None or n.thought.lowest is None or n.thought.lowest >= floor]
        return held or finished

    def settled(self, tree: SearchTree) -> bool:
        if self.stop == "none":
            return False
        groups = poll(tree, self._counted(tree))
        first, second = ([group.count for group in groups] + [0, 0])[:2]
        left = self.samples - len(tree.told) + len(tree.cancelled)
        if self.vote == "majority" and first - second > left > 0:
            return True
        sure_of: Sequence[str] = ()
        if self.stop == "window":
            sure_of = self._agreed(tree)
        elif first and beta_confidence(first, second) >= self.stop_at:
            sure_of = groups[0].members
        return bool(sure_of) and not set(sure_of).isdisjoint(poll(tree, self.voters(tree), self._weight)[0].members)

    def answer(self, tree: SearchTree) -> Selection:
        reason = "agreed" if self.settled(tree) else "done"
        return self.with_unused(tree, pooled(tree, reason, self._weight, voters=self.voters(tree)))

    @property
    def _weight(self) -> Weight | None:
        return (lambda node: node.thought.confidence) if self.vote == "confidence" else None

    def _agreed(self, tree: SearchTree) -> list[str]:
        """Ids of the nodes of full windows that state one answer; a sample that states none breaks its window."""
        windows: dict[int, list[Node]] = {}
        for node in self._counted(tree):
            if node.depth == 1:
                windows.setdefault(node.index // self.window, []).append(node)
        full = (nodes for nodes in windows.values() if len(nodes) == self.window and self._agree(tree, nodes))
        return [node.id for nodes in full for node in nodes]

    def _counted(self, tree: SearchTree) -> Iterable[Node]:
        """Those who vote, in any order."""
        return self.voters(tree) if self.prune else tree.finished()

    def _agree(self, tree: SearchTree, nodes: list[Node]) -> bool:
        groups = poll(tree, nodes)
        return len(groups) == 1 and groups[0].count == self.window


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    """Linear between neighbours, as `numpy.percentile`; None of nothing."""
    if not ordered:
        return None
    at = share * (len(ordered) - 1)
    low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
    return low + (high - low) * (at - math.floor(at))
