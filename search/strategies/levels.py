"""Base of searches that go level by level: judge the newest level, allot children to some of it, prune the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from search.ceiling import Ceiling
from search.node import Node
from search.strategies.base import ScoredStrategy
from search.strategies.options import require_at_least
from search.tree import SearchTree
from search.types import Expansion, Sampling


@dataclass(frozen=True, kw_only=True)
class LevelSearch(ScoredStrategy, ABC):
    """max_depth: steps on a path.

    A level is expanded in portions of the capacity, or at once where its scores meet within a wave only, and planned
    when the level above is told, so that the tree does not depend on the capacity. A path that died leaves its place
    empty.
    """

    max_depth: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1, "max_depth")

    @abstractmethod
    def allot(self, tree: SearchTree, level: Sequence[Node]) -> Mapping[str, int]:
        """Children of each kept node of the newest level (open and finished ones, in canonical order), by id."""

    @abstractmethod
    def width(self, depth: int) -> tuple[int, int]:
        """Most (orders, samples) below the nodes of this depth."""

    def orders(self, tree: SearchTree, node: Node) -> list[Expansion]:
        if node.depth > 0:
            return [tree.expansion(node, node.quota)]
        return [tree.expansion(node, n, hint=hint) for hint, n in self.by_hint(node.quota)]

    def reason(self) -> str:
        """Why a node of a level is pruned."""
        return f"not among the best of its level ({self.name})"

    def ask(self, tree: SearchTree, capacity: int) -> list[Expansion]:
        if not self._ready(tree) and not tree.in_flight:
            self._plan(tree)
        orders: list[Expansion] = []
        for node in self._ready(tree):
            if tree.in_flight >= capacity and self.compares != "wave":
                break
            orders += self.orders(tree, node)
        return orders

    def backup(self, tree: SearchTree, parent: Node, grown: list[Node]) -> None:
        for child in grown:
            if child.depth >= self.max_depth:
                tree.close(child)

    def ceiling(self, sampling: Sampling) -> Ceiling:
        widths = [self.width(depth) for depth in range(self.max_depth)]
        samples = sum(width[1] for width in widths)
        return Ceiling(sum(width[0] for width in widths), samples, samples * sampling.max_tokens, self.max_depth)

    def _ready(self, tree: SearchTree) -> list[Node]:
        """Nodes that wait for their children; a level that is partly expanded is the last but one."""
        depths = range(max(tree.height - 1, 0), tree.height + 1)
        return [node for depth in depths for node in tree.level(depth) if node.expandable and node.quota]

    def _plan(self, tree: SearchTree) -> None:
        level = [node for node in tree.level(tree.height) if node.status in ("open", "terminal")]
        quotas = self.allot(tree, level)
        for node in level:
            node.quota = quotas.get(node.id, 0)
            if not node.quota:
                tree.prune(node, self.reason())
