"""What a placement policy is: the choice of an engine for each branch of a wave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from actors.placement import Branch, Placed, Wave


class Policy(Protocol):
    """One instance serves all trees; `uses_home`: whether it weighs costs by home engines, and fetches KV."""

    name: ClassVar[str]
    uses_home: ClassVar[bool]

    def place(self, tree: str, wave: Wave, branches: Sequence[Branch]) -> list[Placed]:
        """A decision for each branch, in order, with every term of its cost."""
        ...

    def end_tree(self, tree: str) -> None:
        """The tree is finished."""
        ...


class ChoosingPolicy:
    """Base of policies that choose one engine after the other."""

    name: ClassVar[str] = ""
    uses_home: ClassVar[bool] = False

    def choose(self, tree: str, wave: Wave, branch: Branch, among: Sequence[str]) -> str:
        raise NotImplementedError

    def place(self, tree: str, wave: Wave, branches: Sequence[Branch]) -> list[Placed]:
        decisions = []
        for branch in branches:
            actor = self.choose(tree, wave, branch, wave.allowed(branch))
            placed = wave.price(branch, actor, self.name)
            wave.book(branch, placed)
            decisions.append(placed)
        return decisions

    def end_tree(self, tree: str) -> None:
        return None


def least_loaded(wave: Wave, branch: Branch, among: Sequence[str]) -> str:
    """The engine that has done what it has to do first; of equals the one with fewer rows, then by name."""
    return min(among, key=lambda actor: (wave.busy_s(actor, branch.new_tokens), wave.plan(actor).rows, actor))
