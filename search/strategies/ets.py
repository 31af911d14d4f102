"""ETS (Hooper et al. 2025): which leaves to keep, by their reward, the KV they hold, and how they differ.

The paper solves an integer program. Here each cluster's value is first put on one leaf, on all or on none, which
makes the objective a sum over the tree that is solved exactly from the leaves up; then leaves and whole subtrees are
added and dropped while that pays, and the best of these is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

_PAYS = 1e-12
_MOST_TO_CLIMB = 32  # leaves; each step of the climb takes time in their square


@dataclass(frozen=True, slots=True)
class Leaf:
    """weight: share of the reward. path: KV held by each node of the path, (node id, tokens). cluster: what it says."""

    id: str
    weight: float
    path: tuple[tuple[str, int], ...]
    cluster: tuple[str, ...]


def objective(kept: Sequence[Leaf], leaves: Sequence[Leaf], lambda_b: float, lambda_d: float) -> float:
    """sum W - lambda_b KV(kept) / KV(all) + lambda_d clusters(kept) / clusters(all); a shared node's KV counts once.

    KV in tokens: bytes are tokens times a constant of the model, which the quotient takes out.
    """
    tokens = [sum({node: n for leaf in some for node, n in leaf.path}.values()) for some in (kept, leaves)]
    clusters = [len({leaf.cluster for leaf in some}) for some in (kept, leaves)]
    weight = sum(leaf.weight for leaf in kept)
    return weight - lambda_b * tokens[0] / max(tokens[1], 1) + lambda_d * clusters[0] / max(clusters[1], 1)


def keep(leaves: Sequence[Leaf], lambda_b: float, lambda_d: float) -> list[Leaf]:
    """The leaves kept, at least one if there is one, in their order; ties go to the first."""
    if not leaves:
        return []
    shown, leaves = {leaf.id: leaf for leaf in leaves}, _compressed(leaves)
    per_token = lambda_b / max(sum({node: n for leaf in leaves for node, n in leaf.path}.values()), 1)
    per_cluster = lambda_d / len({leaf.cluster for leaf in leaves})

    subsets = _Subsets(leaves, lambda_b, lambda_d)
    starts = [[leaves[max(range(len(leaves)), key=lambda i: subsets.worth(1 << i))]]]
    for speakers in (_speakers(leaves, per_token), {leaf.id for leaf in leaves}, set()):
        values = {leaf.id: leaf.weight + per_cluster * (leaf.id in speakers) for leaf in leaves}
        starts.append(_solve(leaves, values, per_token) or starts[0])
    if len(leaves) <= _MOST_TO_CLIMB:
        starts = [_climb(start, leaves, subsets) for start in starts]
    return [shown[leaf.id] for leaf in max(starts, key=lambda kept: subsets.worth(subsets.mask(kept)))]


class _Subsets:
    """`objective` of many subsets of the same leaves, each a bit mask, leaf i being bit i."""

    def __init__(self, leaves: Sequence[Leaf], lambda_b: float, lambda_d: float) -> None:
        self.weights = [leaf.weight for leaf in leaves]
        self.bits = {leaf.id: 1 << i for i, leaf in enumerate(leaves)}
        self.lambda_b, self.lambda_d = lambda_b, lambda_d
        self.below: dict[str, int] = {}
        self.tokens: dict[str, int] = {}
        clusters: dict[tuple[str, ...], int] = {}
        for leaf in leaves:
            clusters[leaf.cluster] = clusters.get(leaf.cluster, 0) | self.bits[leaf.id]
            for node, tokens in leaf.path:
                self.below[node] = self.below.get(node, 0) | self.bits[leaf.id]
                self.tokens[node] = tokens
        self._held = [(self.below[node], tokens) for node, tokens in self.tokens.items()]
        self._clusters = list(clusters.values())
        self._all = max(sum(self.tokens.values()), 1)

    def mask(self, kept: Sequence[Leaf]) -> int:
        return sum(self.bits[leaf.id] for leaf in kept)

    def worth(self, kept: int) -> float:
        weight = sum(weight for i, weight in enumerate(self.weights) if kept >> i & 1)
        tokens = sum(tokens for below, tokens in self._held if below & kept)
        clusters = sum(1 for members in self._clusters if members & kept)
        most = max(len(self._clusters), 1)
        return weight - self.lambda_b * tokens / self._all + self.lambda_d * clusters / most


def _compressed(leaves: Sequence[Leaf]) -> list[Leaf]:
    """The same tree with one node for each set of leaves that share a trunk: long paths become short ones."""
    below: dict[str, list[str]] = {}
    tokens: dict[str, int] = {}
    for leaf in leaves:
        for node, count in leaf.path:
            below.setdefault(node, []).append(leaf.id)
            tokens[node] = count
    trunk = {node: "\0".join(ids) for node, ids in below.items()}
    merged: Counter[str] = Counter()
    for node, name in trunk.items():
        merged[name] += tokens[node]
    paths = ((leaf, dict.fromkeys(trunk[node] for node, _ in leaf.path)) for leaf in leaves)
    return [replace(leaf, path=tuple((name, merged[name]) for name in names)) for leaf, names in paths]


def _speakers(leaves: Sequence[Leaf], per_token: float) -> set[str]:
    """The leaf of each cluster that is worth most by itself."""
    best: dict[tuple[str, ...], Leaf] = {}
    for leaf in leaves:
        rival = best.setdefault(leaf.cluster, leaf)
        if leaf.weight - per_token * leaf.path[-1][1] > rival.weight - per_token * rival.path[-1][1]:
            best[leaf.cluster] = leaf
    return {leaf.id for leaf in best.values()}


def _solve(leaves: Sequence[Leaf], values: Mapping[str, float], per_token: float) -> list[Leaf]:
    """Exact maximum of sum of values - per_token KV: a trunk is kept if what pays below it pays for it too."""
    gain = {leaf.path[-1][0]: values[leaf.id] for leaf in leaves}
    for depth in reversed(range(max(len(leaf.path) for leaf in leaves))):
        level = {leaf.path[depth]: leaf.path[depth - 1][0] for leaf in leaves if len(leaf.path) > depth}
        for (node, tokens), parent in level.items():
            gain[node] = gain.get(node, 0.0) - per_token * tokens
            if depth:
                gain[parent] = gain.get(parent, 0.0) + max(gain[node], 0.0)
    return [leaf for leaf in leaves if all(gain[node] > _PAYS for node, _ in leaf.path)]


def _climb(start: Sequence[Leaf], leaves: Sequence[Leaf], subsets: _Subsets) -> list[Leaf]:
    """Add or drop a leaf, or all leaves below a node, as long as that pays; the best change first."""
    kept = subsets.mask(start)
    value = subsets.worth(kept)
    while True:
        groups = subsets.below.values()
        rivals = [*(kept | group for group in groups), *(kept & ~group for group in groups)]
        best = max((rival for rival in rivals if rival), key=subsets.worth)
        if subsets.worth(best) <= value + _PAYS:
            return [leaf for leaf in leaves if subsets.bits[leaf.id] & kept]
        kept, value = best, subsets.worth(best)
