"""Self-consistency (Wang et al. 2023) with adaptive stopping (Aggarwal et al. 2023).

Selection: the root. Expansion: independent full samples. Simulation: none. Backup: one vote per canonical answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from search.strategies.base import TreeStrategy, answer_of, pooled, require_at_least, require_number
from search.tree import SearchTree
from search.types import Boundary, Expansion, Selection
from search.voting import Vote, beta_confidence, tally


@dataclass(frozen=True, kw_only=True)
class SelfConsistency(TreeStrategy):
    """samples: most samples drawn. wave: samples asked for at once. stop_at: Beta confidence that ends sampling early.

    max_tokens: limit of one whole sample. At temperature 0 there is one sample a hint.
    """

    name: ClassVar[str] = "self_consistency"
    judges: ClassVar[bool] = False
    merges: ClassVar[bool] = False
    samples: int = 8
    wave: int = 4
    stop_at: float = 0.95
    max_tokens: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1, "samples", "wave", "max_tokens")
        require_number(self, 0.5, 1.0, "stop_at")
        if self.stop_at == 0.5:
            raise ValueError(f"option stop_at must be in (0.5, 1], got {self.stop_at!r}")

    def ask(self, tree: SearchTree, capacity: int) -> list[Expansion]:
        if tree.in_flight or self._agreed(tree):
            return []
        asked = len(tree.asked)
        sampling = replace(tree.sampling, max_tokens=self.max_tokens, boundary=Boundary.none())
        if sampling.temperature == 0.0:
            orders = [] if asked else self.by_hint(self.samples)
            return [tree.expansion(tree.root, n, sampling, hint=hint) for hint, n in orders]
        count = min(self.wave, self.samples - asked)
        return [tree.expansion(tree.root, 1, sampling, hint=self._hint(asked + i)) for i in range(count)]

    def answer(self, tree: SearchTree) -> Selection:
        selection = pooled(tree, weighted=False, reason="agreed" if self._agreed(tree) else "done")
        return replace(selection, unused={"samples": self.samples - len(tree.asked)})

    def _agreed(self, tree: SearchTree) -> bool:
        groups = tally([Vote(answer_of(tree, node), node.id, node.multiplicity) for node in tree.complete()])
        first, second = ([g.count for g in groups] + [0, 0])[:2]
        return first > 0 and beta_confidence(first, second) >= self.stop_at

    def _hint(self, sample: int) -> str | None:
        return self.hints[sample % len(self.hints)] if self.hints else None
