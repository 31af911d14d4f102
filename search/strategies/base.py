"""The Strategy protocol (ask/tell; the state is the tree) and a base class that leaves only the ideas to write."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar, Literal, Protocol

from search.answers import extract
from search.tree import Node, SearchTree, canonical
from search.types import Expansion, Outcome, Selection
from search.voting import Vote, tally

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
    needs: ClassVar[frozenset[str]]
    """Engine capabilities the strategy cannot do without."""
    compares: ClassVar[Compares]
    """Where scores meet before the final answer; "tree" for a strategy that does not say."""
    hints: tuple[str, ...]

    def ask(self, tree: SearchTree, capacity: int) -> list[Expansion]: ...

    def tell(self, tree: SearchTree, outcome: Outcome) -> None: ...

    def answer(self, tree: SearchTree) -> Selection: ...


@dataclass(frozen=True, kw_only=True)
class TreeStrategy:
    """Base: `tell` grows the tree once per outcome and hands the new nodes to `backup`.

    hints: texts put behind the problem in turn, one prompt variant each; () is the plain prompt only.
    """

    name: ClassVar[str] = ""
    judges: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset()
    compares: ClassVar[Compares] = "tree"
    merges: ClassVar[bool] = True
    """Whether siblings of equal canonical state may become one node (off where samples are counted one by one)."""
    hints: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given: object = self.hints
        if not isinstance(given, list | tuple) or not all(isinstance(hint, str) for hint in given):
            raise ValueError(f"option hints must be a list of texts, got {given!r}")
        object.__setattr__(self, "hints", tuple(self.hints))

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

    def answer(self, tree: SearchTree) -> Selection:
        """Best finished solution by score; without one, the best partial path, not complete."""
        return best_by_score(tree)


def best_by_score(tree: SearchTree, reason: str = "done") -> Selection:
    """Best finished path that states an answer (`best_node`)."""
    finished = [(node, answer_of(tree, node)) for node in tree.complete()]
    stated = [node for node, answer in finished if answer is not None]
    if stated:
        node = best_node(tree, stated)
        return Selection(answer_of(tree, node), node.id, True, reason, votes(tree, stated))
    return best_partial(tree, reason)


def best_node(tree: SearchTree, nodes: Sequence[Node]) -> Node:
    """The best of finished nodes, like compared with like; ties go to the canonical first.

    Verified nodes compare by score, nodes that CGEE skipped by standing. The best of each kind then meet in what both
    have: votes for their answer among `nodes`, then confidence.
    """
    kinds = [[node for node in nodes if (node.standing is None) == verified] for verified in (True, False)]
    finalists = [max(kind, key=lambda n: n.rank) for kind in kinds if kind]
    if len(finalists) == 1:
        return finalists[0]
    groups = tally(_ballots(tree, nodes, weighted=False))
    weight = {node_id: group.weight for group in groups for node_id in group.members}
    return max(finalists, key=lambda n: (weight.get(n.id, 0.0), n.thought.confidence or 0.0))


def best_partial(tree: SearchTree, reason: str = "done") -> Selection:
    """Without a finished answer: the deepest, then best-scored, path and what it states so far.

    A path that ended without an answer, or died, comes after every path that could go on, and claims none. The reason
    is `no_answer` unless an answer was found or a limit of the strategy's keeps some path from going on.
    """
    nodes = sorted((node for node in tree.nodes() if node.depth > 0), key=canonical)
    if not nodes:
        return Selection(None, None, False, "no_answer")
    node = max(nodes, key=lambda n: (_goes_on(n), n.status != "dead", n.depth, n.rank))
    answer = answer_of(tree, node) if _goes_on(node) else None
    limited = reason != "done" and any(n.status == "open" for n in nodes)
    return Selection(answer, node.id, False, reason if answer is not None or limited else "no_answer")


def _goes_on(node: Node) -> bool:
    return not node.complete and node.status != "dead"


def pooled(tree: SearchTree, weighted: bool, reason: str = "done") -> Selection:
    """Vote of all finished paths, each with its multiplicity (times its score when `weighted`).

    The chosen node is the best member of the winning group (`best_node`).
    """
    ballots = _ballots(tree, tree.complete(), weighted)
    groups = tally(ballots)
    if not groups:
        return best_partial(tree, reason)
    node = best_node(tree, [tree.node(node_id) for node_id in groups[0].members])
    return Selection(groups[0].answer, node.id, True, reason, {g.answer: g.weight for g in groups})


def votes(tree: SearchTree, nodes: Sequence[Node]) -> dict[str, float]:
    """Canonical vote counts of finished nodes, for the result's explanation."""
    return {group.answer: group.weight for group in tally(_ballots(tree, nodes, weighted=False))}


def answer_of(tree: SearchTree, node: Node) -> str | None:
    """The last answer stated on the path, by the problem's kind. A step cut by the token limit states nothing."""
    path = tree.path(node)
    while not node.complete and path and path[-1].thought.finish in ("length", "cancelled"):
        path.pop()
    text = "".join(n.thought.text for n in path)
    return extract(text, tree.problem.kind) if text.strip() else None


def _ballots(tree: SearchTree, nodes: Sequence[Node], weighted: bool) -> list[Vote]:
    """A node whose verdict has no score weighs as the mean of those that have one."""
    scores = [node.score for node in nodes if weighted and node.score is not None]
    neutral = fmean(scores) if scores else 1.0
    ballots = []
    for node in nodes:
        score = node.score if weighted and node.score is not None else neutral
        ballots.append(Vote(answer_of(tree, node), node.id, node.multiplicity * score))
    return ballots


def require_at_least(strategy: object, least: int, *names: str) -> None:
    """Raise ValueError for an integer option below `least`."""
    for name in names:
        value = getattr(strategy, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"option {name} must be an integer >= {least}, got {value!r}")


def require_number(strategy: object, low: float, high: float, *names: str) -> None:
    """Raise ValueError for an option that is no finite number in [low, high]."""
    for name in names:
        value = getattr(strategy, name)
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or not low <= value <= high:
            raise ValueError(f"option {name} must be a number in [{low:g}, {high:g}], got {value!r}")
