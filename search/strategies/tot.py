"""Tree of Thoughts (Yao et al. 2023): breadth-first beam, or depth-first with backtracking.

Selection: bfs - the `b` best nodes of the newest level; dfs - the best open child of the deepest node.
Expansion: `k` next steps, sampled one by one or proposed in one reply. Simulation: none, a verifier values each step or
holds a vote among the candidates. Backup: none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar, Literal

from search.ceiling import Ceiling
from search.node import Node
from search.strategies.base import Compares
from search.strategies.levels import LevelSearch
from search.strategies.options import require_at_least, require_choice, require_number
from search.strategies.selection import answer_of, pooled
from search.tree import SearchTree
from search.types import Expansion, Sampling, Selection

_ENDING = 4


@dataclass(frozen=True, kw_only=True)
class TreeOfThoughts(LevelSearch):
    """b: beam width (bfs). k: next steps of a node. order: "bfs" | "dfs".

    generate: "sample" draws k independent steps, "propose" asks for k different ones in one reply, for tasks with short
    steps. evaluate: "value" scores each path by itself, "vote" lets the model choose among the new ones; shares of a
    vote say nothing about another wave, so then most finished paths decide the answer, not the best share.
    prune_below: dfs gives up steps scored below it. solutions: dfs ends after so many paths that state an answer.
    """

    name: ClassVar[str] = "tot"
    compares: ClassVar[Compares] = "wave"
    b: int = 2
    k: int = 3
    order: Literal["bfs", "dfs"] = "bfs"
    generate: Literal["sample", "propose"] = "sample"
    evaluate: Literal["value", "vote"] = "value"
    prune_below: float = 0.0
    solutions: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1, "b", "k", "solutions")
        require_number(self, 0.0, 1.0, "prune_below")
        require_choice(self, "order", ("bfs", "dfs"))
        require_choice(self, "generate", ("sample", "propose"))
        require_choice(self, "evaluate", ("value", "vote"))

    def ask(self, tree: SearchTree, capacity: int) -> list[Expansion]:
        if self.order == "bfs":
            return super().ask(tree, capacity)
        return [] if tree.in_flight else [order for node in self._deepest(tree) for order in self.orders(tree, node)]

    def allot(self, tree: SearchTree, level: Sequence[Node]) -> Mapping[str, int]:
        """A finished path keeps its place in the beam."""
        ranked = sorted(level, key=lambda node: self.rank(tree, node), reverse=True)
        return {node.id: self.k for node in ranked[: self.b]}

    def orders(self, tree: SearchTree, node: Node) -> list[Expansion]:
        mode: Literal["sample", "propose"] = "propose" if self.generate == "propose" else "sample"
        if node.depth > 0:
            return [tree.expansion(node, self.k, mode=mode)]
        return [tree.expansion(node, n, hint=hint, mode=mode) for hint, n in self.by_hint(self.k)]

    def reason(self) -> str:
        return f"outside the beam of {self.b}"

    def answer(self, tree: SearchTree) -> Selection:
        return pooled(tree) if self.evaluate == "vote" and any(tree.finished()) else super().answer(tree)

    def backup(self, tree: SearchTree, parent: Node, grown: list[Node]) -> None:
        super().backup(tree, parent, grown)
        for child in grown:
            if self.order == "dfs" and child.score is not None and child.score < self.prune_below:
                tree.prune(child, f"score below {self.prune_below}")

    def width(self, depth: int) -> tuple[int, int]:
        if depth == 0:
            return min(len(self.hints) or 1, self.k), self.k
        nodes = min(self.b, self.k**depth)
        return nodes, nodes * self.k

    def ceiling(self, sampling: Sampling) -> Ceiling:
        """Depth-first, the whole tree in the worst case: k + k^2 + ... + k^max_depth samples.

        A proposal is tokenised with the step's ending, for which a few tokens are reckoned.
        """
        most = super().ceiling(sampling)
        if self.order == "dfs":
            samples = sum(self.k**depth for depth in range(1, self.max_depth + 1))
            orders = self.width(0)[0] + sum(self.k**depth for depth in range(1, self.max_depth))
            most = Ceiling(orders, samples, samples * sampling.max_tokens, self.max_depth)
        if self.generate == "sample":
            return most
        return replace(most, follow_ups=most.expansions, restated=most.tokens + _ENDING * most.samples)

    def _deepest(self, tree: SearchTree) -> list[Node]:
        """Next node in depth-first order: down the best child that still has an open leaf."""
        stated = (node for node in tree.finished() if answer_of(tree, node) is not None)
        if len(list(islice(stated, self.solutions))) == self.solutions:
            return []
        node = tree.root
        while not node.expandable:
            children = [child for child in tree.children(node) if child.open_leaves]
            if not children:
                return []
            node = max(children, key=lambda n: (self.rank(tree, n), -n.index))
        return [node]
