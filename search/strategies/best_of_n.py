"""Best-of-N: the best of N whole samples by a verifier (Cobbe et al. 2021), or their weighted vote (Li et al. 2023).

Selection: the root. Expansion: independent full samples. Simulation: the verifier's score of each. Backup: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from search.strategies.base import Compares, ScoredStrategy
from search.strategies.options import require_number
from search.strategies.selection import answer_of
from search.strategies.whole import WholeSamples
from search.tree import SearchTree
from search.types import Selection


@dataclass(frozen=True, kw_only=True)
class BestOfN(WholeSamples, ScoredStrategy):
    """samples: N. accept: a finished sample scored at least so high ends the search."""

    name: ClassVar[str] = "best_of_n"
    compares: ClassVar[Compares] = "wave"
    accept: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number(self, 0.0, 1.0, "accept")

    def settled(self, tree: SearchTree) -> bool:
        return any(
            node.score is not None and node.score >= self.accept and answer_of(tree, node) is not None
            for node in tree.finished()
        )

    def answer(self, tree: SearchTree) -> Selection:
        return self.with_unused(tree, self.chosen(tree, "accepted" if self.settled(tree) else "done"))
