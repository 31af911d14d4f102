"""Bytes of one memory (the device's, or the host's) by store: what a split shares is counted once, and wholly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.kv_segment import Segment

WASTE = 8
"""A store may waste 1 / WASTE of its bytes before what is left of it is worth a copy."""


@dataclass(slots=True)
class _Store:
    nbytes: int
    segments: set[Segment] = field(default_factory=set)
    pinned: int = 0


class Ledger:
    """nbytes: all stores; pinned: those of them in which a segment has readers, which no eviction can free."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.pinned = 0
        self._stores: dict[int, _Store] = {}
        self._left: set[int] = set()

    def owns(self, identity: int) -> bool:
        return identity in self._stores

    def sharers(self, segment: Segment) -> set[Segment]:
        """The segments in this one's store."""
        return self._stores[segment.payload.store[0]].segments

    def add(self, segment: Segment) -> None:
        identity, nbytes = segment.payload.store
        store = self._stores.get(identity)
        if store is None:
            store = self._stores[identity] = _Store(nbytes)
            self.nbytes += nbytes
        store.segments.add(segment)
        if segment.readers:
            self.pin(segment)

    def remove(self, segment: Segment) -> None:
        """A store is freed with its last segment."""
        identity, _ = segment.payload.store
        store = self._stores[identity]
        if segment.readers:
            self.unpin(segment)
        store.segments.remove(segment)
        if store.segments:
            self._left.add(identity)
            return
        del self._stores[identity]
        self._left.discard(identity)
        self.nbytes -= store.nbytes

    def pin(self, segment: Segment) -> None:
        """The segment has got its first reader."""
        store = self._stores[segment.payload.store[0]]
        store.pinned += 1
        if store.pinned == 1:
            self.pinned += store.nbytes

    def unpin(self, segment: Segment) -> None:
        """The segment has lost its last reader."""
        store = self._stores[segment.payload.store[0]]
        store.pinned -= 1
        if store.pinned == 0:
            self.pinned -= store.nbytes

    @property
    def loose(self) -> bool:
        """Whether `compact` may find something."""
        return bool(self._left)

    def compact(self, most: int | None) -> int:
        """Give what is left of a split segment memory of its own, where the rest is gone and all bytes with the copy
        stay within `most` (None: unbounded). Returns the most bytes there were on the way, 0 if nothing was copied."""
        peak = 0
        for segments, nbytes in self._wasteful():
            if most is not None and self.nbytes + nbytes > most:
                continue
            peak = max(peak, self.nbytes + nbytes)
            copies = [segment.payload.copy() for segment in segments]
            for segment, payload in zip(segments, copies, strict=True):
                self.remove(segment)
                segment.payload = payload
                self.add(segment)
        return peak

    def _wasteful(self) -> list[tuple[list[Segment], int]]:
        """Segments without readers, with their bytes, by store, where the store is much larger than they are."""
        found = []
        for identity in [i for i in self._left if not self._stores[i].pinned]:
            store = self._stores[identity]
            live = sum(segment.payload.nbytes for segment in store.segments)
            if (store.nbytes - live) * WASTE > store.nbytes:
                found.append((sorted(store.segments, key=lambda s: s.start), live))
            else:
                self._left.discard(identity)
        return found

    def check(self, segments: Iterable[Segment]) -> None:
        """Raise RuntimeError unless the books are those of exactly these segments."""
        fresh = Ledger()
        for segment in segments:
            fresh.add(segment)
        for identity, store in fresh._stores.items():
            booked = self._stores.get(identity)
            if booked != store:
                raise RuntimeError(f"a store of {store.nbytes} bytes is not in the books as it is")
        if (fresh.nbytes, fresh.pinned, len(fresh._stores)) != (self.nbytes, self.pinned, len(self._stores)):
            raise RuntimeError(
                f"books say {self.nbytes} bytes, {self.pinned} pinned; stores have {fresh.nbytes}, {fresh.pinned}"
            )
