"""`sticky`: a tree stays on the engine that was least loaded when it began, however wide it grows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import ClassVar

from actors.placement import Branch, Wave
from actors.policies.base import ChoosingPolicy

_TREES = 4096


class Sticky(ChoosingPolicy):
    """Of equally loaded engines a tree takes the one with the fewest trees."""

    name: ClassVar[str] = "sticky"

    def __init__(self) -> None:
        self._engine: OrderedDict[str, str] = OrderedDict()
        self._trees: dict[str, int] = {}

    def choose(self, tree: str, wave: Wave, branch: Branch, among: Sequence[str]) -> str:
        engine = self._engine.get(tree)
        if engine is None or engine not in among:
            self.end_tree(tree)
            engine = min(among, key=lambda a: (self._trees.get(a, 0), wave.busy_s(a, branch.new_tokens), a))
            self._engine[tree] = engine
            self._trees[engine] = self._trees.get(engine, 0) + 1
            while len(self._engine) > _TREES:
                self.end_tree(next(iter(self._engine)))
        return engine

    def end_tree(self, tree: str) -> None:
        if (engine := self._engine.pop(tree, None)) is not None:
            self._trees[engine] -= 1
