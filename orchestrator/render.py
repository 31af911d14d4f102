"""A result as plain text: the answer, the tree with scores and engines, and what it cost."""

from __future__ import annotations

from search.node import Node
from search.result import SearchResult
from search.tree import SearchTree
from search.types import Cost

_WIDTH = 76


def render(result: SearchResult) -> str:
    """What `solve` prints on standard output without `--json`."""
    lines = ["tree:", *tree_lines(result.tree, result.node_id), "", cost_line(result)]
    lines += [f"warning: {printable(text)}" for text in result.warnings]
    if result.error is not None:
        lines.append(f"error: {printable(result.error)}")
    state = "" if result.complete else " (best partial path, not complete)"
    lines.append(f"answer: {printable(result.answer) if result.answer is not None else 'none'}{state}")
    return "\n".join(lines)


def tree_lines(tree: SearchTree, chosen: str | None = None) -> list[str]:
    """One line a node, indented by depth; `*` marks the chosen path, `~` the standing of a node CGEE did not verify."""
    path = {node.id for node in tree.path(tree.node(chosen))} if chosen else set()
    lines, stack = [], [tree.root]
    while stack:
        node = stack.pop()
        lines.append(_line(node, node.id in path))
        stack.extend(reversed(tree.children(node)))
    return lines


def cost_line(result: SearchResult) -> str:
    """Tokens, reuse, seconds and engines in one line."""
    cost = result.cost
    reused = ", ".join(f"{n} {tier}" for tier, n in cost.reused.items()) or "0"
    skips = result.skips
    skipped = f", {skips.saved_verifications} verifications skipped" if skips.decisions else ""
    engines = ", ".join(f"{name} {row['generated']}" for name, row in sorted(result.engines.items()))
    return (
        f"cost: {cost.generated} tokens generated ({engines}), {cost.prefilled} prefilled, reused {reused}, "
        f"{cost.verified} verified{skipped}{_layers(cost)}; {cost.seconds.get('total', 0.0):.1f} s; "
        f"{result.strategy} stopped: {result.stop_reason}"
    )


def _layers(cost: Cost) -> str:
    """What layer exit saved; nothing where every question was read to the last layer."""
    return f" in {cost.layer_rows} of {cost.layer_rows_full} layers" if cost.exits else ""


def _line(node: Node, chosen: bool) -> str:
    if node.parent is None:
        return f"{'*' if chosen else ' '} {node.id} {node.status}"
    score = f"{node.score:.3f}" if node.score is not None else "     "
    if node.standing is not None:
        score = f"~{node.standing:.2f}"
    text = printable(" ".join(node.thought.text.split()))
    if len(text) > _WIDTH:
        text = text[: _WIDTH - 3] + "..."
    extra = f" x{node.multiplicity}" if node.multiplicity > 1 else ""
    return f"{'*' if chosen else ' '} {'  ' * node.depth}{score} [{node.engine} {node.status}{extra}] {text}"


def printable(text: str) -> str:
    """Model text without control and direction characters, so that it cannot steer a terminal."""
    return "".join(c if c.isprintable() and c not in _DIRECTION else " " for c in text)


_DIRECTION = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
