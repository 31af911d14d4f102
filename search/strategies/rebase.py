"""REBASE (Wu et al. 2024): the width of a level is shared out by the softmax of its scores; ETS (Hooper et al. 2025).

Selection: every node whose share is at least one child; with `ets` first the subset of leaves with the best balance of
reward, KV kept and clusters covered. Expansion: each node as many sampled steps as its share. Simulation: none, the
verifier scores each step. Backup: none; the answer is a vote weighted by score.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar, Literal

from search.clusters import cluster_key
from search.node import Node
from search.strategies.ets import Leaf, keep
from search.strategies.levels import LevelSearch
from search.strategies.options import require_at_least, require_flag, require_number
from search.tree import SearchTree


@dataclass(frozen=True, kw_only=True)
class Rebase(LevelSearch):
    """n: width of a level, less one for each finished path. balance: temperature of the softmax, small is greedy.

    ets: drop leaves that are not worth their KV. lambda_b, lambda_d: weights of KV and of diversity in that.
    """

    name: ClassVar[str] = "rebase"
    choose: Literal["best", "vote"] = "vote"
    n: int = 8
    balance: float = 0.2
    ets: bool = False
    lambda_b: float = 1.0
    lambda_d: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1, "n")
        require_number(self, 1e-3, 1e3, "balance")
        require_number(self, 0.0, 1e3, "lambda_b", "lambda_d")
        require_flag(self, "ets")

    def allot(self, tree: SearchTree, level: Sequence[Node]) -> Mapping[str, int]:
        if level and level[0] is tree.root:
            return {tree.root.id: self.n}
        nodes = [node for node in level if node.status == "open"]
        budget = self.n - sum(node.multiplicity for node in tree.finished())
        if not nodes or budget < 1:
            return {}
        shares = self._shares(tree, nodes)
        if self.ets:
            leaves = [_leaf(tree, node, share) for node, share in zip(nodes, shares, strict=True)]
            kept = {leaf.id for leaf in keep(leaves, self.lambda_b, self.lambda_d)}
            nodes = [node for node in nodes if node.id in kept]
            shares = self._shares(tree, nodes)
        return {node.id: n for node, n in zip(nodes, apportion(shares, budget), strict=True) if n}

    def width(self, depth: int) -> tuple[int, int]:
        return (self.n if depth else min(len(self.hints) or 1, self.n), self.n)

    def _shares(self, tree: SearchTree, nodes: Sequence[Node]) -> list[float]:
        """Softmax of the scores; a node without a score has the mean of the others'."""
        scores = [self.path_score(tree, node) for node in nodes]
        known = [score for score in scores if score is not None]
        neutral = fmean(known) if known else 0.0
        filled = [neutral if score is None else score for score in scores]
        weights = [math.exp((score - max(filled)) / self.balance) for score in filled]
        return [weight / sum(weights) for weight in weights]


def apportion(shares: Sequence[float], seats: int) -> list[int]:
    """Whole numbers nearest to shares x seats that add up to `seats` (largest remainder; ties go to the first).

    The paper rounds each share, which can give nobody a child, or more children than the budget has.
    """
    exact = [share * seats for share in shares]
    given = [math.floor(x + 1e-9) for x in exact]
    order = sorted(range(len(exact)), key=lambda i: (given[i] - exact[i], i))
    for i in order[: seats - sum(given)]:
        given[i] += 1
    return given


def _leaf(tree: SearchTree, node: Node, share: float) -> Leaf:
    path = tuple((step.id, len(step.thought.token_ids)) for step in tree.path(node)[1:])
    return Leaf(node.id, share, path, cluster_key(node.thought.text))
