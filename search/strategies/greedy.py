"""Greedy decoding, step by step on one path: the baseline every search must beat.

Selection: the only open node. Expansion: one child at temperature 0. Simulation: none. Backup: none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from search.ceiling import Ceiling
from search.strategies.base import TreeStrategy
from search.strategies.options import require_at_least
from search.strategies.selection import best_by_score
from search.tree import SearchTree
from search.types import Expansion, Sampling, Selection


@dataclass(frozen=True, kw_only=True)
class Greedy(TreeStrategy):
    """max_depth: steps on the path. The text equals one uninterrupted greedy generation."""

    name: ClassVar[str] = "greedy"
    judges: ClassVar[bool] = False
    max_depth: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1, "max_depth")

    def ask(self, tree: SearchTree, capacity: int) -> list[Expansion]:
        if tree.in_flight or tree.height >= self.max_depth:
            return []
        sampling = replace(tree.sampling, temperature=0.0)
        tips = [node for node in tree.level(tree.height) if node.expandable]
        return [tree.expansion(node, 1, sampling, hint=self.hint() if not node.depth else None) for node in tips]

    def answer(self, tree: SearchTree) -> Selection:
        return best_by_score(tree, "depth" if any(node.expandable for node in tree.nodes()) else "done")

    def ceiling(self, sampling: Sampling) -> Ceiling:
        return Ceiling(self.max_depth, self.max_depth, self.max_depth * sampling.max_tokens, self.max_depth)
