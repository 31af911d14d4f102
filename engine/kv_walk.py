"""Walks down the KV tree: the longest held prefix of some tokens, in exact KV only or in approximate KV too."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.base import Segments, flat
from engine.kv_segment import Match, Segment, common_length


def longest(root: Segment, tokens: Sequence[int], approximate: bool) -> Match:
    """Longest held prefix. approximate: KV that ASKS approximated serves, too, where it reaches further."""
    best = walk(root, tokens, False)
    if not approximate:
        return best
    exact = best.segments
    for i, node in enumerate((root, *exact)):
        if node.end < len(tokens) and ~tokens[node.end] in node.children:
            found = walk(node, tokens, True)
            if found.length > best.length:
                best = Match((*exact[:i], *found.segments), found.partial, found.length)
    return best


def walk(node: Segment, tokens: Sequence[int], approximate: bool) -> Match:
    """Whole segments below `node`, then part of one more. approximate: from exact KV cross over to approximate KV."""
    segments: list[Segment] = []
    at = node.end
    while at < len(tokens):
        crossing = approximate and not node.approximate
        child = node.children.get(~tokens[at] if crossing else tokens[at])
        if child is None:
            break
        common = common_length(child.tokens, tokens[at : at + len(child.tokens)])
        at += common
        if common < len(child.tokens):
            return Match(tuple(segments), child, at)
        segments.append(child)
        node = child
    return Match(tuple(segments), None, at)


def part_at_ends(root: Segment, reach: Callable[[Sequence[int]], Segment], path: Segments) -> None:
    """Cut the held KV of `path` where each of its segments ends, less a token, so that it can be released from there:
    an engine that grows a deep node first holds the whole path to it as one. reach: of the tree, which cuts."""
    tokens, end = flat(path), 0
    for segment in path[:-1]:
        end += len(segment)
        found = walk(root, tokens[: end - 1], False)
        if found.length == end - 1 and (last := found.partial or (found.segments or (None,))[-1]) is not None:
            (reach(tokens[: end - 1]) if found.partial else last).asked = True
