"""ETS (Hooper et al. 2025): which leaves to keep, by their reward, the KV they hold, and how they differ.

The paper solves an integer program; here leaves are added one by one while that pays, then dropped while that pays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

_PAYS = 1e-12


@dataclass(frozen=True, slots=True)
class Leaf:
    """weight: share of the reward. path: KV held by each node of the path, (node id, tokens). cluster: what it says."""

    id: str
    weight: float
    path: tuple[tuple[str, int], ...]
    cluster: tuple[str, ...]


@dataclass
class _Kept:
    """Leaves kept so far; `gain` and `loss` are differences of the objective.

    sum W - lambda_b KV(kept) / KV(all) + lambda_d clusters(kept) / clusters(all). A node shared by several leaves
    counts once. KV in tokens: bytes are tokens times a constant of the model, which the quotient takes out.
    """

    per_token: float
    per_cluster: float
    leaves: dict[str, Leaf] = field(default_factory=dict)
    nodes: Counter[str] = field(default_factory=Counter)
    clusters: Counter[tuple[str, ...]] = field(default_factory=Counter)

    def gain(self, leaf: Leaf, present: int = 0) -> float:
        """What the leaf is worth beside the others; present: 1 if it is kept already."""
        tokens = sum(tokens for node, tokens in leaf.path if self.nodes[node] == present)
        fresh = self.clusters[leaf.cluster] == present
        return leaf.weight - self.per_token * tokens + self.per_cluster * fresh

    def change(self, leaf: Leaf, by: int) -> None:
        for node, _ in leaf.path:
            self.nodes[node] += by
        self.clusters[leaf.cluster] += by
        if by > 0:
            self.leaves[leaf.id] = leaf
        else:
            del self.leaves[leaf.id]


def keep(leaves: Sequence[Leaf], lambda_b: float, lambda_d: float) -> list[Leaf]:
    """The leaves kept, at least one if there is one, in their order; ties go to the first."""
    if not leaves:
        return []
    total = sum({node: tokens for leaf in leaves for node, tokens in leaf.path}.values())
    clusters = len({leaf.cluster for leaf in leaves})
    kept = _Kept(lambda_b / max(total, 1), lambda_d / clusters)
    while len(kept.leaves) < len(leaves):
        best = max((leaf for leaf in leaves if leaf.id not in kept.leaves), key=kept.gain)
        if kept.leaves and kept.gain(best) <= _PAYS:
            break
        kept.change(best, 1)
    while len(kept.leaves) > 1:
        worst = min(kept.leaves.values(), key=lambda leaf: kept.gain(leaf, 1))
        if kept.gain(worst, 1) >= -_PAYS:
            break
        kept.change(worst, -1)
    return [leaf for leaf in leaves if leaf.id in kept.leaves]


def objective(kept: Sequence[Leaf], leaves: Sequence[Leaf], lambda_b: float, lambda_d: float) -> float:
    """The objective of a subset of `leaves`, from its definition."""
    tokens = [sum({node: n for leaf in some for node, n in leaf.path}.values()) for some in (kept, leaves)]
    clusters = [len({leaf.cluster for leaf in some}) for some in (kept, leaves)]
    weight = sum(leaf.weight for leaf in kept)
    return weight - lambda_b * tokens[0] / max(tokens[1], 1) + lambda_d * clusters[0] / max(clusters[1], 1)
