"""Beam search over steps with a verifier (Snell et al. 2024, beam search against a process reward model).

Selection: the n / m best of the newest level and all finished paths. Expansion: m sampled steps each, n at the root.
Simulation: none, the verifier scores each step. Backup: none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from search.node import Node, canonical
from search.strategies.levels import LevelSearch
from search.strategies.options import require_at_least
from search.strategies.selection import answer_of
from search.tree import SearchTree


def require_beams(strategy: object, n: int, m: int) -> None:
    """Raise ValueError unless `n` candidates are a whole number of beams with `m` children each."""
    require_at_least(strategy, 1, "n", "m")
    if n % m:
        raise ValueError(f"option n must be a multiple of m, got n={n!r} and m={m!r}")


@dataclass(frozen=True, kw_only=True)
class Beam(LevelSearch):
    """n: candidates of a level. m: children of each of the n / m beams.

    A finished path keeps its place in the beam as long as it is among the best; the search ends when all places are
    taken by finished paths.
    """

    name: ClassVar[str] = "beam"
    n: int = 8
    m: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require_beams(self, self.n, self.m)

    def allot(self, tree: SearchTree, level: Sequence[Node]) -> Mapping[str, int]:
        if level and level[0] is tree.root:
            return {tree.root.id: self.n}
        answered = (node for node in tree.finished() if answer_of(tree, node) is not None)
        rivals = sorted((*(node for node in level if not node.complete), *answered), key=canonical)
        best = sorted(rivals, key=lambda node: self.rank(tree, node), reverse=True)[: self.n // self.m]
        return {node.id: self.m for node in best}

    def width(self, depth: int) -> tuple[int, int]:
        return (self.n // self.m, self.n) if depth else (min(len(self.hints) or 1, self.n), self.n)
