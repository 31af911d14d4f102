"""Where the nodes of a drawn tree are: depth to the right, leaves downwards, parents in the middle of children."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Place = tuple[float, float]
"""(depth, leaf): both in steps from 0."""


def children_of(nodes: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Ids of children by id, in the order of the nodes; every node has an entry."""
    children: dict[str, list[str]] = {node["id"]: [] for node in nodes}
    for node in nodes:
        if node["parent"] in children:
            children[node["parent"]].append(node["id"])
    return children


def preorder(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ids from the top, each node before its subtree."""
    children, order = children_of(nodes), []
    stack = [node["id"] for node in nodes if node["parent"] is None]
    while stack:
        order.append(stack.pop())
        stack.extend(reversed(children[order[-1]]))
    return order


def places(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Place]:
    """Place of each node that hangs on the root."""
    children, depth = children_of(nodes), {node["id"]: node["depth"] for node in nodes}
    order = preorder(nodes)
    leaves = iter(range(len(order)))
    row: dict[str, float] = {name: float(next(leaves)) for name in order if not children[name]}
    for name in reversed(order):
        if children[name]:
            row[name] = (row[children[name][0]] + row[children[name][-1]]) / 2
    return {name: (float(depth[name]), row[name]) for name in order}
