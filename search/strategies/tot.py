"""Tree of Thoughts (Yao et al. 2023): breadth-first beam, or depth-first with backtracking.

Selection: bfs - the `b` best nodes of the newest level; dfs - the best open child of the deepest node.
Expansion: `k` sampled next steps. Simulation: none, the verifier scores each step. Backup: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from search.strategies.base import (
    Compares,
    TreeStrategy,
    answer_of,
    best_by_score,
    require_at_least,
    require_number,
)
from search.tree import Node, SearchTree, canonical
from search.types import Expansion, Selection


@dataclass(frozen=True, kw_only=True)
class TreeOfThoughts(TreeStrategy):
    """b: beam width (bfs). k: samples per node. max_depth: steps on a path. order: "bfs" | "dfs".

    prune_below: dfs gives up steps scored below it. solutions: dfs ends after so many paths that state an answer.
    """

    name: ClassVar[str] = "tot"
    compares: ClassVar[Compares] = "wave"
    b: int = 2
    k: int = 3
    max_depth: int = 4
    order: Literal["bfs", "dfs"] = "bfs"
    prune_below: float = 0.0
    solutions: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1, "b", "k", "max_depth", "solutions")
        require_number(self, 0.0, 1.0, "prune_below")
        if self.order not in ("bfs", "dfs"):
            raise ValueError(f"option order must be 'bfs' or 'dfs', got {self.order!r}")

    def ask(self, tree: SearchTree, capacity: int) -> list[Expansion]:
        if tree.in_flight:
            return []
        chosen = self._beam(tree) if self.order == "bfs" else self._deepest(tree)
        return [order for node in chosen for order in self._orders(tree, node)]

    def answer(self, tree: SearchTree) -> Selection:
        deep = any(n.status == "open" and n.closed for n in tree.nodes())
        return best_by_score(tree, "done" if tree.complete() or not deep else "depth")

    def backup(self, tree: SearchTree, parent: Node, grown: list[Node]) -> None:
        for child in grown:
            if self.order == "dfs" and child.score is not None and child.score < self.prune_below:
                tree.prune(child, f"score below {self.prune_below}")
            if child.depth >= self.max_depth:
                tree.close(child)

    def _orders(self, tree: SearchTree, node: Node) -> list[Expansion]:
        if node.depth > 0:
            return [tree.expansion(node, self.k)]
        return [tree.expansion(node, n, hint=hint) for hint, n in self.by_hint(self.k)]

    def _beam(self, tree: SearchTree) -> list[Node]:
        """The open ones among the `b` best of the newest level; a finished path keeps its place in the beam."""
        level = max(node.depth for node in tree.nodes())
        newest = [node for node in tree.nodes() if node.depth == level and node.status in ("open", "terminal")]
        ranked = sorted(sorted(newest, key=canonical), key=lambda n: n.rank, reverse=True)
        for node in ranked[self.b :]:
            tree.prune(node, f"outside the beam of {self.b}")
        return [node for node in ranked[: self.b] if node.expandable]

    def _deepest(self, tree: SearchTree) -> list[Node]:
        """Next node in depth-first order: down the best child that still has an open leaf."""
        if sum(answer_of(tree, node) is not None for node in tree.complete()) >= self.solutions:
            return []
        node = tree.root
        while not node.expandable:
            children = [child for child in tree.children(node) if child.open_leaves]
            if not children:
                return []
            node = max(children, key=lambda n: (n.rank, -n.index))
        return [node]
