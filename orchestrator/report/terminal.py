"""A tree on a terminal, from its journal; what is of the model cannot steer the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.render import printable
from orchestrator.report.layout import preorder

_WIDTH = 76


def tree_text(tree: Mapping[str, Any]) -> str:
    """The problem, why its answer won, and one line a node; `*` marks the winning path."""
    lines = [f"{printable(str(tree['id']))}: {_short(tree['question'], 200)}"]
    for rival in tree["rivals"]:
        votes = "not counted" if rival["votes"] is None else f"{rival['votes']:g} votes"
        score = "" if rival["score"] is None else f", best score {rival['score']:.3f}"
        lines.append(f"  {_short(rival['answer'], 40)}: {votes}, {rival['paths']} paths{score}")
    nodes = {node["id"]: node for node in tree["nodes"]}
    lines += [_line(nodes[name]) for name in preorder(tree["nodes"])]
    lines += [f"warning: {printable(text)}" for text in tree["warnings"]]
    answer = "none" if tree["answer"] is None else _short(tree["answer"], 200)
    lines.append(f"answer: {answer} (stopped: {printable(str(tree['stop']))})")
    return "\n".join(lines)


def _line(node: Mapping[str, Any]) -> str:
    score = "     " if node["score"] is None else f"{node['score']:.3f}"
    if node["standing"] is not None:
        score = f"~{node['standing']:.2f}"
    facts = [node["engine"], node["status"], f"{node['tokens']} tokens"]
    if node["visits"]:
        facts.append(f"{node['visits']} visits")
    if node["multiplicity"] > 1:
        facts.append(f"x{node['multiplicity']}")
    if node["reason"]:
        facts.append(_short(node["reason"], 60))
    mark = "*" if node.get("win") else " "
    head = f"{mark} {'  ' * node['depth']}{score} [{printable(' '.join(filter(None, facts)))}]"
    return f"{head} {_short(node['text'], _WIDTH)}".rstrip()


def _short(text: object, width: int) -> str:
    shown = printable(" ".join(str(text).split()))
    return shown if len(shown) <= width else shown[: width - 3] + "..."
