"""What a strategy answers: the best finished path, the vote of all of them, or the best partial path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from search.answers import extract
from search.node import Node, canonical
from search.tree import SearchTree
from search.types import CUT, Selection
from search.voting import Group, Vote, tally

Rank = Callable[[Node], tuple[float, ...]]
"""Sort key of a node: whether it has a score, and the score."""
Weight = Callable[[Node], float | None]
"""How much a finished path's vote counts; None where nothing tells."""


def by_own_score(node: Node) -> tuple[float, ...]:
    return node.rank


def best_by_score(tree: SearchTree, reason: str = "done", rank: Rank = by_own_score) -> Selection:
    """Best finished path that states an answer (`best_node`)."""
    stated = [node for node in tree.complete() if answer_of(tree, node) is not None]
    if stated:
        node = best_node(tree, stated, rank)
        return Selection(answer_of(tree, node), node.id, True, reason, votes(tree, stated))
    return best_partial(tree, reason, rank)


def best_node(tree: SearchTree, nodes: Sequence[Node], rank: Rank = by_own_score) -> Node:
    """The best of finished nodes, like compared with like; ties go to the canonical first.

    Verified nodes compare by rank, nodes that CGEE skipped by standing. The best of each kind then meet in what both
    have: votes for their answer among `nodes`, then confidence.
    """
    verified = [node for node in nodes if node.standing is None]
    skipped = [node for node in nodes if node.standing is not None]
    finalists = [max(kind, key=key) for kind, key in ((verified, rank), (skipped, by_own_score)) if kind]
    if len(finalists) == 1:
        return finalists[0]
    weight = {node_id: group.weight for group in poll(tree, nodes) for node_id in group.members}
    return max(finalists, key=lambda n: (weight.get(n.id, 0.0), n.thought.confidence or 0.0))


def best_partial(tree: SearchTree, reason: str = "done", rank: Rank = by_own_score) -> Selection:
    """Without a finished answer: the deepest, then best-ranked, path and what it states so far.

    A path that ended without an answer, or died, comes after every path that could go on, and claims none. The reason
    is `no_answer` unless an answer was found or a limit of the strategy's keeps some path from going on.
    """
    nodes = sorted((node for node in tree.nodes() if node.depth > 0), key=canonical)
    if not nodes:
        return Selection(None, None, False, "no_answer")
    node = max(nodes, key=lambda n: (_goes_on(n), n.status != "dead", n.depth, rank(n)))
    answer = answer_of(tree, node) if _goes_on(node) else None
    limited = reason != "done" and any(n.status == "open" for n in nodes)
    return Selection(answer, node.id, False, reason if answer is not None or limited else "no_answer")


def pooled(
    tree: SearchTree,
    reason: str = "done",
    weight: Weight | None = None,
    rank: Rank = by_own_score,
    voters: Sequence[Node] | None = None,
) -> Selection:
    """Vote of all finished paths, or of these voters, each with its multiplicity (times its weight).

    The chosen node is the best member of the winning group (`best_node`), and its answer the one it states.
    """
    groups = poll(tree, tree.complete() if voters is None else voters, weight)
    if not groups:
        return best_partial(tree, reason, rank)
    node = best_node(tree, [tree.node(node_id) for node_id in groups[0].members], rank)
    return Selection(answer_of(tree, node), node.id, True, reason, {g.answer: g.weight for g in groups})


def votes(tree: SearchTree, nodes: Sequence[Node]) -> dict[str, float]:
    """Canonical vote counts of finished nodes, for the result's explanation."""
    return {group.answer: group.weight for group in poll(tree, nodes)}


def poll(tree: SearchTree, nodes: Iterable[Node], weight: Weight | None = None) -> list[Group]:
    """Groups of equivalent answers, the heaviest first. A node without a weight weighs as the mean of the others."""
    nodes = list(nodes)
    weights = [weight(node) if weight else 1.0 for node in nodes]
    known = [w for w in weights if w is not None]
    neutral = fmean(known) if known else 1.0
    ballots = [
        Vote(answer_of(tree, node), node.id, node.multiplicity * (neutral if w is None else w))
        for node, w in zip(nodes, weights, strict=True)
    ]
    return tally(ballots, tree.problem.kind)


def answer_of(tree: SearchTree, node: Node) -> str | None:
    """The last answer stated on the path, by the problem's kind. A step cut by the token limit states nothing."""
    if node.complete and node.id in tree.answers:
        return tree.answers[node.id]
    path = tree.path(node)
    while not node.complete and path and path[-1].thought.finish in CUT:
        path.pop()
    text = "".join(n.thought.text for n in path)
    answer = extract(text, tree.problem.kind) if text.strip() else None
    if node.complete:
        tree.answers[node.id] = answer
    return answer


def _goes_on(node: Node) -> bool:
    return not node.complete and node.status != "dead"
