"""Radix tree of variable-length token segments with their KV: each held token is stored once.

A segment's payload (K and V of its tokens, or nothing in simulation) splits without copying. Running readers pin their
path; pinned segments are never dropped. Changes are recorded as `KVEvent`s for the block index.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol

from engine.base import KVEvent, key_state, token_bytes


class Payload(Protocol):
    """KV of one segment."""

    @property
    def nbytes(self) -> int: ...

    def split(self, at: int) -> tuple[Payload, Payload]:
        """The first `at` tokens and the rest, sharing storage."""
        ...


@dataclass(slots=True, eq=False)
class Segment:
    """Tokens [start, end) of a path. `hash` is the key state of the whole prefix up to `end`."""

    tokens: tuple[int, ...]
    payload: Payload
    parent: Segment | None
    start: int
    hash: blake2b
    children: dict[int, Segment] = field(default_factory=dict)
    readers: int = 0
    used: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def key(self) -> bytes:
        return self.hash.copy().digest()


@dataclass(frozen=True, slots=True)
class Match:
    """Longest held prefix: whole segments, then `partial` tokens of one more."""

    segments: tuple[Segment, ...]
    partial: Segment | None
    length: int


class KVTree:
    """Books of one engine's KV. budget_bytes None is unbounded; 0 keeps nothing."""

    def __init__(self, fingerprint: str, budget_bytes: int | None = None) -> None:
        self.root = Segment((), _Nothing(), None, 0, key_state(fingerprint))
        self.budget_bytes = budget_bytes
        self.num_tokens = 0
        self.num_bytes = 0
        self.num_evicted = 0
        self._by_key: dict[bytes, Segment] = {}
        self._events: list[KVEvent] = []
        self._clock = 0

    # -- reading ---------------------------------------------------------------------------------------------------
    def match(self, tokens: Sequence[int]) -> Match:
        """Longest held prefix of `tokens`; touches what it passes for least-recent-use."""
        self._clock += 1
        segments: list[Segment] = []
        node, at = self.root, 0
        while at < len(tokens) and (child := node.children.get(tokens[at])) is not None:
            common = _common(child.tokens, tokens[at : at + len(child.tokens)])
            child.used = self._clock
            at += common
            if common < len(child.tokens):
                return Match(tuple(segments), child, at)
            segments.append(child)
            node = child
        return Match(tuple(segments), None, at)

    def segments(self) -> Iterator[Segment]:
        """All segments, parents before children."""
        stack = [self.root]
        while stack:
            node = stack.pop()
            if node is not self.root:
                yield node
            stack.extend(node.children.values())

    # -- writing ---------------------------------------------------------------------------------------------------
    def insert(self, tokens: Sequence[int], cut: Callable[[int, int], Payload]) -> Segment:
        """Hold KV of `tokens`; `cut(start, stop)` gives the payload of the part that was not held yet.

        Returns the segment that ends exactly at the last token, splitting one if need be.
        """
        match = self.match(tokens)
        node = match.segments[-1] if match.segments else self.root
        if match.partial is not None:
            node = self._split(match.partial, match.length - match.partial.start)
        if match.length == len(tokens):
            return node
        tail = tuple(tokens[match.length :])
        state = node.hash.copy()
        state.update(token_bytes(tail))
        segment = Segment(tail, cut(match.length, len(tokens)), node, node.end, state, used=self._clock)
        node.children[tail[0]] = segment
        self.num_tokens += len(tail)
        self.num_bytes += segment.payload.nbytes
        self._by_key[segment.key] = segment
        self._events.append(KVEvent("add", segment.key, node.key, segment.end))
        return segment

    def pin(self, segment: Segment) -> None:
        """A reader runs on this path: nothing on it may be dropped until `unpin`."""
        for node in self._upwards(segment):
            node.readers += 1

    def unpin(self, segment: Segment) -> None:
        for node in self._upwards(segment):
            node.readers -= 1

    def release(self, key: bytes) -> None:
        """Drop the segment that ends at `key` and all below it, but for what readers hold; unknown keys are ignored."""
        segment = self._by_key.get(key)
        if segment is None:
            return
        below = [segment]
        for node in below:
            below.extend(node.children.values())
        for node in reversed(below):
            self._drop_leaf(node)

    def enforce_budget(self) -> None:
        """Drop least recently used leaves until the byte budget holds or all that is left is pinned."""
        if self.budget_bytes is None or self.num_bytes <= self.budget_bytes:
            return
        order = itertools.count()
        leaves = [(s.used, -s.start, next(order), s) for s in self.segments() if not s.children]
        heapq.heapify(leaves)
        while leaves and self.num_bytes > self.budget_bytes:
            leaf = heapq.heappop(leaves)[-1]
            parent = leaf.parent
            if not self._drop_leaf(leaf):
                continue
            self.num_evicted += 1
            if parent is not None and parent is not self.root and not parent.children:
                heapq.heappush(leaves, (parent.used, -parent.start, next(order), parent))

    # -- events and books ------------------------------------------------------------------------------------------
    def events(self) -> list[KVEvent]:
        events, self._events = self._events, []
        return events

    def snapshot(self) -> list[KVEvent]:
        return [KVEvent("add", s.key, s.parent.key if s.parent else b"", s.end) for s in self.segments()]

    def check_integrity(self) -> None:
        """Raise RuntimeError if the books do not balance."""
        tokens = nbytes = 0
        keys = {}
        for segment in self.segments():
            tokens += len(segment.tokens)
            nbytes += segment.payload.nbytes
            keys[segment.key] = segment
            parent = segment.parent
            if parent is None or parent.children.get(segment.tokens[0]) is not segment or segment.start != parent.end:
                raise RuntimeError(f"segment at {segment.start} is not linked to its parent")
            if segment.key != _key_below(parent, segment.tokens):
                raise RuntimeError(f"segment at {segment.start} has a key that is not its path's")
            if segment.used > parent.used and parent is not self.root:
                raise RuntimeError(f"segment at {segment.start} was used later than its parent")
            if segment.readers < sum(child.readers for child in segment.children.values()):
                raise RuntimeError(f"segment at {segment.start} has fewer readers than its children")
        if (tokens, nbytes, keys) != (self.num_tokens, self.num_bytes, self._by_key):
            raise RuntimeError(f"books say {self.num_tokens} tokens, {self.num_bytes} bytes; held {tokens}, {nbytes}")

    def _split(self, segment: Segment, at: int) -> Segment:
        """Cut `segment` behind its first `at` tokens; returns the upper part."""
        parent = segment.parent
        if parent is None:
            raise RuntimeError("the root cannot be split")
        head, tail = segment.payload.split(at)
        state = parent.hash.copy()
        state.update(token_bytes(segment.tokens[:at]))
        upper = Segment(segment.tokens[:at], head, parent, segment.start, state, readers=segment.readers)
        upper.used = segment.used
        parent.children[upper.tokens[0]] = upper
        segment.tokens, segment.payload, segment.parent, segment.start = (
            segment.tokens[at:],
            tail,
            upper,
            upper.end,
        )
        upper.children[segment.tokens[0]] = segment
        self._by_key[upper.key] = upper
        self._events.append(KVEvent("add", upper.key, parent.key, upper.end))
        return upper

    def _drop_leaf(self, segment: Segment) -> bool:
        if segment.children or segment.readers or segment.parent is None:
            return False
        del segment.parent.children[segment.tokens[0]]
        del self._by_key[segment.key]
        self.num_tokens -= len(segment.tokens)
        self.num_bytes -= segment.payload.nbytes
        self._events.append(KVEvent("drop", segment.key))
        return True

    def _upwards(self, segment: Segment) -> Iterator[Segment]:
        node: Segment | None = segment
        while node is not None and node is not self.root:
            yield node
            node = node.parent


class _Nothing:
    """Payload of the root."""

    nbytes = 0

    def split(self, at: int) -> tuple[Payload, Payload]:
        raise RuntimeError("the root has no tokens to split")


def _key_below(parent: Segment, tokens: Sequence[int]) -> bytes:
    state = parent.hash.copy()
    state.update(token_bytes(tokens))
    return state.digest()


def _common(a: tuple[int, ...], b: Sequence[int]) -> int:
    """Length of the common prefix."""
    n, b = min(len(a), len(b)), tuple(b)
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])
