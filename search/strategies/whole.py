"""Base of strategies that draw whole solutions from the root, in waves, until they are sure enough."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import ClassVar

from search.ceiling import Ceiling
from search.strategies.base import TreeStrategy
from search.strategies.options import require_at_least
from search.tree import SearchTree
from search.types import Boundary, Expansion, Sampling, Selection


@dataclass(frozen=True, kw_only=True)
class WholeSamples(TreeStrategy):
    """samples: most samples drawn. wave: samples asked for at once, whatever the capacity. max_tokens: limit of one
    whole sample.

    At temperature 0 there is one sample a hint. Once `settled`, nothing more is asked for and what is in flight is
    called back.
    """

    merges: ClassVar[bool] = False
    samples: int = 8
    wave: int = 4
    max_tokens: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1, "samples", "wave", "max_tokens")

    def settled(self, tree: SearchTree) -> bool:
        """Whether more samples cannot be expected to change the answer."""
        return False

    def drawn_by(self, tree: SearchTree) -> Sampling:
        """How the next samples are drawn."""
        return replace(tree.sampling, max_tokens=self.max_tokens, boundary=Boundary.none())

    def due(self, asked: int) -> int:
        """How many samples may have been asked for before the next decision, once `asked` were."""
        return self.samples

    def ask(self, tree: SearchTree, capacity: int) -> list[Expansion]:
        if tree.in_flight or self.settled(tree):
            return []
        asked = len(tree.asked)
        sampling = self.drawn_by(tree)
        if sampling.temperature == 0.0:
            orders = [] if asked else self.by_hint(self.samples)
            return [tree.expansion(tree.root, n, sampling, hint=hint) for hint, n in orders]
        count = min(self.wave, self.due(asked) - asked)
        return [tree.expansion(tree.root, 1, sampling, hint=self.hint(asked + i)) for i in range(count)]

    def unneeded(self, tree: SearchTree) -> Collection[str]:
        return [order for order in tree.asked if order not in tree.told] if self.settled(tree) else []

    def with_unused(self, tree: SearchTree, selection: Selection) -> Selection:
        """Adds how many samples were never drawn to their end."""
        return replace(selection, unused={"samples": self.samples - len(tree.asked) + len(tree.cancelled)})

    def ceiling(self, sampling: Sampling) -> Ceiling:
        return Ceiling(self.samples, self.samples, self.samples * self.max_tokens, 1)
