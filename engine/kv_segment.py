"""Segments of the KV tree: some tokens of a path, with their KV on the device or in host memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal, Protocol

from engine.base import token_bytes

State = Literal["device", "host"]
_APPROXIMATE = b"approximate"


class Payload(Protocol):
    """KV of one segment."""

    @property
    def nbytes(self) -> int:
        """Bytes of the segment's own tokens."""
        ...

    @property
    def store(self) -> tuple[int, int]:
        """Identity and bytes of the memory the payload lies in; parts of a split share it until they are copied."""
        ...

    def split(self, at: int) -> tuple[Payload, Payload]:
        """The first `at` tokens and the rest, sharing storage."""
        ...

    def copy(self) -> Payload:
        """The same tokens in memory of their own, where they are."""
        ...

    def to_host(self) -> Payload:
        """A copy in host memory, in memory of its own."""
        ...

    def to_device(self) -> Payload:
        """A copy on the device, in memory of its own."""
        ...


@dataclass(slots=True, eq=False)
class Segment:
    """Tokens [start, end) of a path. `hash` is the key state of the whole prefix up to `end`.

    readers: running rows that need it; used: the tree's clock at the last match; hits: matches so far; omega:
    score / (depth + 1) of the judged node that ends here. Nothing on the device lies below a segment on the host.
    approximate: its KV is not what the model computes for the path (ASKS); so is all KV below it. asked: a path that
    somebody holds ends here; not so where paths only part.
    """

    tokens: tuple[int, ...]
    payload: Payload
    parent: Segment | None
    start: int
    hash: blake2b
    children: dict[int, Segment] = field(default_factory=dict)
    readers: int = 0
    used: int = 0
    hits: int = 0
    omega: float | None = None
    state: State = "device"
    approximate: bool = False
    asked: bool = True

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def key(self) -> bytes:
        return self.hash.copy().digest()

    @property
    def link(self) -> int:
        """Under which its parent knows it: the first token, or ~token where approximate KV hangs below exact KV."""
        crossing = self.approximate and self.parent is not None and not self.parent.approximate
        return ~self.tokens[0] if crossing else self.tokens[0]

    def partings_above(self) -> list[Segment]:
        """Ancestors in which paths only part, nearest first, up to the first that is held for itself. What hangs
        directly on the root (the template that all prompts begin with) is not among them."""
        found: list[Segment] = []
        node = self.parent
        while node is not None and not node.asked and node.start > 0:
            found.append(node)
            node = node.parent
        return found

    def path(self) -> list[Segment]:
        """Segments from the root's child down to this one; empty for the root."""
        found = []
        node: Segment | None = self
        while node is not None and node.parent is not None:
            found.append(node)
            node = node.parent
        return found[::-1]

    def below(self) -> Iterator[Segment]:
        """This segment and all below it, parents before children."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


@dataclass(frozen=True, slots=True)
class Match:
    """Longest held prefix: whole segments, then `partial` tokens of one more."""

    segments: tuple[Segment, ...]
    partial: Segment | None
    length: int


class Nothing:
    """Payload of the root."""

    nbytes = 0
    store = (0, 0)

    def split(self, at: int) -> tuple[Payload, Payload]:
        raise RuntimeError("the root has no tokens to split")

    def copy(self) -> Payload:
        return self

    def to_host(self) -> Payload:
        return self

    def to_device(self) -> Payload:
        return self


def check_links(segment: Segment, root: Segment) -> None:
    """Raise RuntimeError if the segment does not fit its parent and children."""
    at, parent = segment.start, segment.parent
    if parent is None or parent.children.get(segment.link) is not segment or at != parent.end:
        raise RuntimeError(f"segment at {at} is not linked to its parent")
    if segment.key != extended(parent, segment.tokens, segment.approximate).digest():
        raise RuntimeError(f"segment at {at} has a key that is not its path's")
    if segment.used > parent.used and parent is not root:
        raise RuntimeError(f"segment at {at} was used later than its parent")
    if segment.readers < sum(child.readers for child in segment.children.values()):
        raise RuntimeError(f"segment at {at} has fewer readers than its children")
    if parent.approximate and not segment.approximate:
        raise RuntimeError(f"segment at {at} is exact behind approximate KV")
    if segment.state == "device" and parent.state == "host":
        raise RuntimeError(f"segment at {at} is on the device, its parent on the host")
    if segment.state == "host" and segment.readers:
        raise RuntimeError(f"segment at {at} has readers but is on the host")


def extended(parent: Segment, tokens: Sequence[int], approximate: bool) -> blake2b:
    """Key state behind `parent` and `tokens`; approximate KV never has the key of the exact one."""
    state = parent.hash.copy()
    if approximate and not parent.approximate:
        state.update(_APPROXIMATE)
    state.update(token_bytes(tokens))
    return state


def nbytes_in(segments: Sequence[Segment], state: State) -> int:
    """Bytes of those that are in this memory."""
    return sum(segment.payload.nbytes for segment in segments if segment.state == state)


def common_length(a: tuple[int, ...], b: Sequence[int]) -> int:
    """Length of the common prefix."""
    n, b = min(len(a), len(b)), tuple(b)
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])
