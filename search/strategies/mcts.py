"""Monte Carlo tree search: UCT (Kocsis & Szepesvari 2006) with in-flight counts (WU-UCT, Liu et al. 2020).

Selection: from the root down, one level at a time, to the child maximising Q + c sqrt(2 ln(N_p + O_p) / (N + O)), O the
expansions in flight below it. Expansion: `k` sampled steps of the reached leaf, once. Simulation: the verifier's score
of each new child. Backup: N += 1 and W += score for the child and every node above it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from search.strategies.base import TreeStrategy, pooled, require_at_least, require_number
from search.tree import Node, SearchTree
from search.types import Expansion, Selection


@dataclass(frozen=True, kw_only=True)
class MCTS(TreeStrategy):
    """simulations: expansions in all. k: children per expansion. c: exploration. leaves: most leaves in flight.

    Expansions <= simulations and each node is expanded once; generated samples <= simulations * k. Waves, and with
    them calls of `expand` on one engine, <= simulations; the same holds for calls of the verifier.
    """

    name: ClassVar[str] = "mcts"
    simulations: int = 16
    k: int = 2
    c: float = 1.0
    max_depth: int = 6
    leaves: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1, "simulations", "k", "max_depth", "leaves")
        require_number(self, 0.0, 1e6, "c")

    def ask(self, tree: SearchTree, capacity: int) -> list[Expansion]:
        orders: list[Expansion] = []
        free = min(capacity, self.leaves) - tree.in_flight
        while len(orders) < free and len(tree.asked) < self.simulations:
            leaf = self.select(tree)
            if leaf is None:
                break
            orders.append(tree.expansion(leaf, self.k, hint=self.hints[0] if self.hints and not leaf.depth else None))
        return orders

    def select(self, tree: SearchTree) -> Node | None:
        """Descend to a leaf that can be expanded now; None if there is none (all in flight, ended or too deep)."""
        node = tree.root
        while not node.expandable:
            children = [child for child in tree.children(node) if child.open_leaves]
            if not children:
                return None
            node = max(children, key=lambda child: self._uct(node, child))
        return node

    def backup(self, tree: SearchTree, parent: Node, grown: list[Node]) -> None:
        """A child without a score counts as a visit worth the nearest score above it, or 1/2."""
        path = tree.path(parent)
        neutral = next((node.score for node in reversed(path) if node.score is not None), 0.5)
        for child in grown:
            value = child.score if child.score is not None else neutral
            for node in (*path, child):
                node.visits += child.multiplicity
                node.value_sum += value * child.multiplicity
            if child.depth >= self.max_depth:
                tree.close(child)

    def answer(self, tree: SearchTree) -> Selection:
        left = self.simulations - len(tree.asked)
        exhausted = not tree.root.open_leaves and not tree.in_flight
        selection = pooled(tree, weighted=True, reason="exhausted" if exhausted else "done")
        return replace(selection, unused={"simulations": left})

    def _uct(self, parent: Node, child: Node) -> tuple[float, int]:
        n = child.visits + child.in_flight
        bonus = math.sqrt(2 * math.log(max(parent.visits + parent.in_flight, 1)) / max(n, 1))
        return (child.mean_value + self.c * bonus, -child.index)
