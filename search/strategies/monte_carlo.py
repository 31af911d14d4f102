"""Base of tree searches that go down from the root, grow one node, and back its children's values up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal

from search.ceiling import Ceiling
from search.node import Node
from search.strategies.base import ScoredStrategy
from search.strategies.options import require_at_least
from search.tree import SearchTree
from search.types import Expansion, Sampling, Selection


@dataclass(frozen=True, kw_only=True)
class MonteCarlo(ScoredStrategy, ABC):
    """simulations: orders in all. k: children of each. leaves: most orders in flight. max_depth: steps on a path."""

    choose: Literal["best", "vote"] = "vote"
    simulations: int = 16
    k: int = 2
    max_depth: int = 6
    leaves: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1, "simulations", "k", "max_depth", "leaves")

    @abstractmethod
    def select(self, tree: SearchTree) -> Node | None:
        """The node to grow next; None if there is none at the moment."""

    def ask(self, tree: SearchTree, capacity: int) -> list[Expansion]:
        orders: list[Expansion] = []
        while tree.in_flight < min(capacity, self.leaves) and len(tree.asked) < self.simulations:
            node = self.select(tree)
            if node is None:
                break
            orders.append(self.order(tree, node))
        return orders

    def order(self, tree: SearchTree, node: Node) -> Expansion:
        return tree.expansion(node, self.k, hint=self.hint() if not node.depth else None)

    def backup(self, tree: SearchTree, parent: Node, grown: list[Node]) -> None:
        """A child without a score counts as a visit worth the nearest score above it, or 1/2."""
        scores = (node.score for node in reversed(tree.path(parent)))
        neutral = next((score for score in scores if score is not None), 0.5)
        for child in grown:
            tree.backup(child, child.score if child.score is not None else neutral)
            if child.depth >= self.max_depth:
                tree.close(child)

    def answer(self, tree: SearchTree) -> Selection:
        exhausted = not tree.in_flight and self.select(tree) is None
        selection = self.chosen(tree, "exhausted" if exhausted else "done")
        return replace(selection, unused={"simulations": self.simulations - len(tree.asked)})

    def ceiling(self, sampling: Sampling) -> Ceiling:
        """Waves, and with them calls of `expand` on one engine and of the verifier, are at most `simulations` too."""
        samples = self.simulations * self.k
        return Ceiling(self.simulations, samples, samples * sampling.max_tokens, min(self.max_depth, self.simulations))
