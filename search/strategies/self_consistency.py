"""Self-consistency (Wang et al. 2023) that stops when the vote is decided.

Stopping: Beta posterior of the lead (adaptive consistency, Aggarwal et al. 2023), or a window of equal answers (ESC, Li
et al. 2024). Weights: one a sample, or its confidence (DeepConf, Fu et al. 2025).

Selection: the root. Expansion: independent full samples. Simulation: none. Backup: one vote per canonical answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from search.node import Node
from search.strategies.options import require_at_least, require_choice, require_number
from search.strategies.selection import answer_of, poll, pooled
from search.strategies.whole import WholeSamples
from search.tree import SearchTree
from search.types import Selection
from search.voting import Vote, beta_confidence, tally


@dataclass(frozen=True, kw_only=True)
class SelfConsistency(WholeSamples):
    """stop: "beta" ends when P(the leader stays ahead of the runner-up) >= stop_at; "window" when `window` samples in a
    row, counted from the first, all state one answer; "none" draws every sample. Either rule also ends a majority vote
    that the samples left cannot turn. vote: "majority" | "confidence".
    """

    name: ClassVar[str] = "self_consistency"
    judges: ClassVar[bool] = False
    stop: Literal["beta", "window", "none"] = "beta"
    stop_at: float = 0.95
    window: int = 4
    vote: Literal["majority", "confidence"] = "majority"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice(self, "stop", ("beta", "window", "none"))
        require_choice(self, "vote", ("majority", "confidence"))
        require_at_least(self, 2, "window")
        require_number(self, 0.5, 1.0, "stop_at")
        if self.stop_at == 0.5:
            raise ValueError(f"option stop_at must be in (0.5, 1], got {self.stop_at!r}")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"confidence"} if self.vote == "confidence" else ())

    def settled(self, tree: SearchTree) -> bool:
        if self.stop == "none":
            return False
        first, second = ([group.count for group in poll(tree, tree.finished())] + [0, 0])[:2]
        left = self.samples - len(tree.told) + len(tree.cancelled)
        if self.vote == "majority" and first - second > left > 0:
            return True
        if self.stop == "window":
            return self._window_agrees(tree)
        return first > 0 and beta_confidence(first, second) >= self.stop_at

    def answer(self, tree: SearchTree) -> Selection:
        weight = (lambda node: node.thought.confidence) if self.vote == "confidence" else None
        return self.with_unused(tree, pooled(tree, "agreed" if self.settled(tree) else "done", weight))

    def _window_agrees(self, tree: SearchTree) -> bool:
        """Whether some full window states one answer; a sample that states none breaks its window."""
        windows: dict[int, list[Node]] = {}
        for node in tree.finished():
            if node.depth == 1:
                windows.setdefault(node.index // self.window, []).append(node)
        return any(len(nodes) == self.window and self._agree(tree, nodes) for nodes in windows.values())

    def _agree(self, tree: SearchTree, nodes: list[Node]) -> bool:
        groups = tally([Vote(answer_of(tree, node), node.id) for node in nodes])
        return len(groups) == 1 and groups[0].count == self.window
