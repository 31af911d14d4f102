"""Where the tokens of a path are held already, at whatever position: an index of windows by their content."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from engine.asks.options import WINDOW
from engine.base import token_bytes
from engine.kv_segment import Segment, common_length
from engine.kv_tree import KVTree

_MOST = 1 << 16


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, stop) of a path are tokens [source, source + stop - start) of the path that ends at `end`."""

    start: int
    stop: int
    source: int
    end: Segment

    @property
    def shift(self) -> int:
        return self.start - self.source


class Windows:
    """Windows of `WINDOW` tokens at multiples of it in held paths, by blake2b; at most 65,536, oldest forgotten.

    Only exact KV on the device is found: what was approximated once is no source.
    """

    def __init__(self, tree: KVTree) -> None:
        self._tree = tree
        self._places: OrderedDict[bytes, tuple[bytes, int]] = OrderedDict()
        tree.named = self.note

    def note(self, segment: Segment) -> None:
        """A segment is held under its key: the windows that end in it are known from now on."""
        first = segment.start // WINDOW * WINDOW
        tokens = _tokens(segment, first)
        for at in range(first, segment.end - WINDOW + 1, WINDOW):
            digest = _digest(tokens[at - first : at - first + WINDOW])
            self._places.pop(digest, None)
            self._places[digest] = (segment.key, at)
        while len(self._places) > _MOST:
            self._places.popitem(last=False)

    def chunks(self, path: Sequence[int], held: int, least: int) -> list[Chunk]:
        """Disjoint chunks of at least `least` tokens of path[held:] that are held elsewhere, in order."""
        found: list[Chunk] = []
        at = held
        while at + WINDOW <= len(path):
            chunk = self._chunk(path, at, found[-1].stop if found else held)
            if chunk is not None and chunk.stop - chunk.start >= least:
                found.append(chunk)
                at = chunk.stop
            else:
                at += 1
        return found

    def _chunk(self, path: Sequence[int], at: int, floor: int) -> Chunk | None:
        """The longest run around the window at `at`, not before `floor`, in the path where the window is known."""
        digest = _digest(path[at : at + WINDOW])
        place = self._places.get(digest)
        if place is None:
            return None
        end = self._tree.find(place[0])
        if end is None:
            del self._places[digest]
            return None
        held = _tokens(end, 0)
        source = place[1]
        if end.state != "device" or held[source : source + WINDOW] != tuple(path[at : at + WINDOW]):
            return None
        start, stop = at, at + WINDOW
        while start > floor and source > 0 and path[start - 1] == held[source - 1]:
            start, source = start - 1, source - 1
        while stop < len(path) and source + stop - start < len(held) and path[stop] == held[source + stop - start]:
            stop += 1
        return Chunk(start, stop, source, end)


@lru_cache(maxsize=512)
def shares(path: tuple[int, ...], other: tuple[int, ...], least: int) -> bool:
    """Whether some `least` tokens follow each other in both, at whatever position."""
    places = {other[at : at + WINDOW]: at for at in range(0, len(other) - WINDOW + 1, WINDOW)}
    for at in range(len(path) - WINDOW + 1):
        place = places.get(path[at : at + WINDOW])
        if place is None:
            continue
        before = common_length(path[:at][::-1], other[:place][::-1])
        if before + common_length(path[at:], other[place:]) >= least:
            return True
    return False


def _tokens(end: Segment, first: int) -> tuple[int, ...]:
    """Tokens from position `first` on of the path to `end`."""
    return tuple(
        token for node in end.path() if node.end > first for token in node.tokens[max(first - node.start, 0) :]
    )


def _digest(tokens: Sequence[int]) -> bytes:
    return blake2b(token_bytes(tokens), digest_size=12).digest()
