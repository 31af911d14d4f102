"""The Strategy protocol (ask/tell; the state is the tree) and base classes that leave only the ideas to write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

from search.aggregation import RULES, Rule, path_score
from search.ceiling import Ceiling
from search.node import Node
from search.strategies.options import require_choice
from search.strategies.selection import best_by_score, pooled
from search.tree import SearchTree
from search.types import Expansion, Outcome, Sampling, Selection

Compares = Literal["wave", "tree"]
"""Where scores meet: within one wave only, or anywhere in the tree. A CGEE rule that orders one wave (`search.cgee`)
may stand in for the verifier in the first case only."""


class Strategy(Protocol):
    """A search as a value: reads and writes the tree, knows no model, no engine and no clock.

    ask: up to about `capacity` orders that may run at once, [] when it waits or is done. tell: takes outcomes in any
    order, a repeated one changes nothing. answer: the best answer so far, at any time.
    """

    name: ClassVar[str]
    judges: ClassVar[bool]
    """Whether new nodes must be scored by a verifier before `tell`."""
    compares: ClassVar[Compares]
    """Where scores meet before the final answer; "tree" for a strategy that does not say."""
    hints: tuple[str, ...]

    @property
    def needs(self) -> frozenset[str]:
        """Engine capabilities the strategy cannot do without."""
        ...

    def ask(self, tree: SearchTree, capacity: int) -> list[Expansion]: ...

    def tell(self, tree: SearchTree, outcome: Outcome) -> None: ...

    def answer(self, tree: SearchTree) -> Selection: ...


@runtime_checkable
class Recalling(Protocol):
    """A strategy that can be done before all it asked for has come back."""

    def unneeded(self, tree: SearchTree) -> Collection[str]:
        """Ids of orders in flight whose outcome can change nothing any more, given what was told so far."""
        ...


@runtime_checkable
class Bounded(Protocol):
    """A strategy that knows beforehand how much it can use at most."""

    def ceiling(self, sampling: Sampling) -> Ceiling:
        """The bound, where a step is drawn by `sampling`."""
        ...


@dataclass(frozen=True, kw_only=True)
class TreeStrategy:
    """Base: `tell` grows the tree once per outcome and hands the new nodes to `backup`.

    hints: texts put behind the problem in turn, one prompt variant each; () is the plain prompt only.
    """

    name: ClassVar[str] = ""
    judges: ClassVar[bool] = True
    compares: ClassVar[Compares] = "tree"
    merges: ClassVar[bool] = True
    """Whether siblings of equal canonical state may become one node (off where samples are counted one by one)."""
    hints: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given: object = self.hints
        if not isinstance(given, list | tuple) or not all(isinstance(hint, str) for hint in given):
            raise ValueError(f"option hints must be a list of texts, got {given!r}")
        object.__setattr__(self, "hints", tuple(self.hints))

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    def tell(self, tree: SearchTree, outcome: Outcome) -> None:
        if outcome.expansion_id in tree.told:
            return
        grown = tree.grow(outcome)
        self.backup(tree, tree.node(outcome.node_id), grown)

    def backup(self, tree: SearchTree, parent: Node, grown: list[Node]) -> None:
        """Update statistics after `parent` got the children `grown` (possibly none)."""

    def by_hint(self, samples: int) -> list[tuple[str | None, int]]:
        """`samples` dealt to the hints in turn: each hint with its share; None is the plain prompt."""
        if not self.hints:
            return [(None, samples)]
        dealt = Counter(self.hints[i % len(self.hints)] for i in range(samples))
        return list(dealt.items())

    def hint(self, i: int = 0) -> str | None:
        """The hint of the i-th sample of the root, dealt in turn."""
        return self.hints[i % len(self.hints)] if self.hints else None

    def answer(self, tree: SearchTree) -> Selection:
        """Best finished solution by score; without one, the best partial path, not complete."""
        return best_by_score(tree)


@dataclass(frozen=True, kw_only=True)
class ScoredStrategy(TreeStrategy):
    """Base of strategies that compare paths by a verifier's scores.

    aggregate: how the scores of a path's steps become one, `search.aggregation`. choose: "best" answers with the best
    finished path, "vote" with the answer that weighs most, each path by its score.
    """

    aggregate: Rule = "last"
    choose: Literal["best", "vote"] = "best"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice(self, "aggregate", RULES)
        require_choice(self, "choose", ("best", "vote"))

    def path_score(self, tree: SearchTree, node: Node) -> float | None:
        """Score of the whole path, in [0, 1] and comparable between lengths; steps without a score are left out."""
        if self.aggregate == "last":
            return node.score
        scores = [step.score for step in tree.path(node) if step.score is not None]
        return path_score(scores, self.aggregate) if scores else None

    def rank(self, tree: SearchTree, node: Node) -> tuple[float, ...]:
        """Sort key; a path without a score is below every path with one, and a path that ends in a step CGEE did not
        verify is one of them: such paths are ordered by the step's standing."""
        if self.aggregate == "last" or node.standing is not None:
            return node.rank
        score = self.path_score(tree, node)
        return (score is not None, score or 0.0, 0.0)

    def chosen(self, tree: SearchTree, reason: str) -> Selection:
        if self.choose == "vote":
            return pooled(tree, reason, lambda n: self.path_score(tree, n), lambda n: self.rank(tree, n))
        return best_by_score(tree, reason, lambda n: self.rank(tree, n))

    def answer(self, tree: SearchTree) -> Selection:
        deep = any(node.status == "open" and node.closed for node in tree.nodes())
        return self.chosen(tree, "depth" if deep and not any(tree.finished()) else "done")
