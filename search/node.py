"""A node of the search tree: a thought with what the search knows of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from search.types import Thought

Status = Literal["open", "expanding", "expanded", "terminal", "pruned", "dead"]


@dataclass(slots=True)
class Node:
    """A thought with what the search knows of it.

    visits N, value_sum W (mean value Q = W / N), in_flight: expansions under way at or below the node.
    complete: the path up to here is a finished solution. closed: a limit of the strategy forbids to expand it.
    open_leaves: expandable nodes at or below. standing: of a node that CGEE did not verify, its place by the rule.
    quota: children that the strategy has allotted to it. value: what it was backed up with; born, born_sum: number and
    sum of its children's values. rollout: it was grown to simulate, and is never expanded.
    """

    id: str
    parent: str | None
    depth: int
    index: int
    thought: Thought
    hint: str = ""
    status: Status = "open"
    score: float | None = None
    standing: float | None = None
    visits: int = 0
    value_sum: float = 0.0
    in_flight: int = 0
    open_leaves: int = 0
    multiplicity: int = 1
    complete: bool = False
    closed: bool = False
    quota: int = 0
    value: float | None = None
    born: int = 0
    born_sum: float = 0.0
    rollout: bool = False
    engine: str = ""
    reason: str | None = None

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Sort key by score; a missing score is below every score, and such nodes are ordered by standing."""
        return (self.score is not None, self.score or 0.0, self.standing or 0.0)

    @property
    def mean_value(self) -> float:
        return self.value_sum / self.visits if self.visits else 0.0

    @property
    def expandable(self) -> bool:
        return self.status == "open" and not self.closed


def canonical(node: Node) -> tuple[int, tuple[int, ...]]:
    """Order of nodes that does not depend on the order of arrival: depth, then sample indices along the path."""
    return (node.depth, tuple(int(part) for part in node.id.split(".")[1:]))


def node_json(node: Node) -> dict[str, Any]:
    """One node of `SearchTree.to_json`."""
    thought = node.thought
    return {
        "id": node.id,
        "parent": node.parent,
        "depth": node.depth,
        "text": thought.text,
        "score": node.score,
        "standing": node.standing,
        "visits": node.visits,
        "status": node.status,
        "engine": node.engine,
        "complete": node.complete,
        "finish": thought.finish if node.parent is not None else None,
        "tokens": thought.generated,
        "confidence": thought.confidence,
        "multiplicity": node.multiplicity,
        "reason": node.reason,
    }
