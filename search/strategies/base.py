"""The Strategy protocol (ask/tell; the state is the tree) and a base class that leaves only the ideas to write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from search.answers import extract
from search.tree import Node, SearchTree
from search.types import Expansion, Outcome, Selection
from search.voting import Vote, tally


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
    hints: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "hints", tuple(self.hints))

    def tell(self, tree: SearchTree, outcome: Outcome) -> None:
        if outcome.expansion_id in tree.told:
            return
        grown = tree.grow(outcome)
        self.backup(tree, tree.node(outcome.node_id), grown)

    def backup(self, tree: SearchTree, parent: Node, grown: list[Node]) -> None:
        """Update statistics after `parent` got the children `grown` (possibly none)."""

    def answer(self, tree: SearchTree) -> Selection:
        """Best finished solution by score; without one, the best partial path, not complete."""
        return best_by_score(tree)


def best_by_score(tree: SearchTree, reason: str = "done") -> Selection:
    """Highest-scored finished path that states an answer; ties go to the canonical first."""
    finished = [(node, answer_of(tree, node)) for node in tree.complete()]
    stated = [(node, answer) for node, answer in finished if answer is not None]
    if stated:
        node, answer = max(stated, key=lambda pair: pair[0].rank)
        return Selection(answer, node.id, True, reason, votes(tree, [n for n, _ in stated]))
    return best_partial(tree, reason)


def best_partial(tree: SearchTree, reason: str = "done") -> Selection:
    """Without a finished answer: the deepest, then best-scored, path and what it states so far."""
    nodes = [node for node in tree.nodes() if node.depth > 0 and node.status != "dead"]
    if not nodes:
        return Selection(None, None, False, "no_answer")
    node = max(nodes, key=lambda n: (n.complete, n.depth, n.rank))
    answer = None if node.complete else answer_of(tree, node)
    return Selection(answer, node.id, False, reason if answer is not None else "no_answer")


def pooled(tree: SearchTree, weighted: bool, reason: str = "done") -> Selection:
    """Vote of all finished paths, each with its multiplicity (times its score when `weighted`).

    The chosen node is the best-scored member of the winning group.
    """
    ballots = _ballots(tree, tree.complete(), weighted)
    groups = tally(ballots)
    if not groups:
        return best_partial(tree, reason)
    members = [tree.node(node_id) for node_id in groups[0].members]
    node = max(members, key=lambda n: n.rank)
    return Selection(groups[0].answer, node.id, True, reason, {g.answer: g.weight for g in groups})


def votes(tree: SearchTree, nodes: Sequence[Node]) -> dict[str, float]:
    """Canonical vote counts of finished nodes, for the result's explanation."""
    return {group.answer: group.weight for group in tally(_ballots(tree, nodes, weighted=False))}


def answer_of(tree: SearchTree, node: Node) -> str | None:
    """The last answer stated on the path, by the problem's kind. A step cut by the token limit states nothing."""
    if node.thought.finish in ("length", "cancelled") and not node.complete:
        text = "".join(tree.steps(node)[:-1])
    else:
        text = tree.text(node)
    return extract(text, tree.problem.kind) if text.strip() else None


def _ballots(tree: SearchTree, nodes: Sequence[Node], weighted: bool) -> list[Vote]:
    ballots = []
    for node in nodes:
        score = node.score if weighted and node.score is not None else 1.0
        ballots.append(Vote(answer_of(tree, node), node.id, node.multiplicity * score))
    return ballots


def require_at_least(strategy: object, least: int, *names: str) -> None:
    """Raise ValueError for an integer option below `least`."""
    for name in names:
        value = getattr(strategy, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"option {name} must be an integer >= {least}, got {value!r}")
