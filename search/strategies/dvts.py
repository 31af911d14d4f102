"""Diverse verifier tree search (Beeching, Tunstall and Rush 2024): n / m subtrees, each a greedy search of its own.

Selection: in every subtree the best of its newest level. Expansion: m sampled steps. Simulation: none, the verifier
scores each step. Backup: none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from search.node import Node
from search.strategies.base import Compares
from search.strategies.beam import require_beams
from search.strategies.levels import LevelSearch
from search.tree import SearchTree
from search.types import Expansion


@dataclass(frozen=True, kw_only=True)
class DVTS(LevelSearch):
    """n: candidates of a level over all subtrees. m: children per step of a subtree.

    A subtree ends when its best path is finished. Each has its own order at the root, so that equal first steps of two
    subtrees are not merged.
    """

    name: ClassVar[str] = "dvts"
    compares: ClassVar[Compares] = "wave"
    n: int = 8
    m: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_beams(self, self.n, self.m)

    def orders(self, tree: SearchTree, node: Node) -> list[Expansion]:
        if node.depth > 0:
            return super().orders(tree, node)
        return [tree.expansion(node, self.m, hint=self.hint(i)) for i in range(self.n // self.m)]

    def allot(self, tree: SearchTree, level: Sequence[Node]) -> Mapping[str, int]:
        if level and level[0] is tree.root:
            return {tree.root.id: self.n}
        best: dict[int, Node] = {}
        for node in level:
            rival = best.setdefault(self._subtree(node), node)
            if self.rank(tree, node) > self.rank(tree, rival):
                best[self._subtree(node)] = node
        return {node.id: self.m for node in best.values()}

    def width(self, depth: int) -> tuple[int, int]:
        return self.n // self.m, self.n

    def _subtree(self, node: Node) -> int:
        return int(node.id.split(".")[1]) // self.m
