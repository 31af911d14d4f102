"""One pass of making room: segments leave the device for the host, and the host for good, in the policy's order."""

from __future__ import annotations

import heapq
import itertools
from typing import Protocol

from engine.eviction import Policy
from engine.kv_ledger import Ledger
from engine.kv_segment import Segment, State

_Entry = tuple[tuple[float, ...], int, int, Segment]


class Residents(Protocol):
    """What a pass needs of the tree."""

    root: Segment
    policy: Policy
    clock: int
    host: Ledger

    @property
    def host_limit(self) -> int: ...

    def offload(self, segment: Segment) -> None: ...

    def evict(self, segment: Segment) -> None: ...

    def drop(self, segment: Segment) -> None: ...


class Evictor:
    """Candidates of the device: nothing of the device below them. Candidates of the host: nothing below them at all."""

    def __init__(self, tree: Residents) -> None:
        self._tree = tree
        self._order = itertools.count()
        self._heaps: dict[State, list[_Entry]] = {}

    def evict(self) -> bool:
        """Move one segment from the device to the host, or drop it; False if nothing may leave."""
        segment = self._pop("device")
        return segment is not None and self.move_out(segment)

    def move_out(self, segment: Segment) -> bool:
        """Move this segment from the device to the host, or drop it; False if it must stay."""
        if not self._may_leave("device", segment):
            return False
        parent = segment.parent
        if self._fits_host(segment.payload.nbytes, segment):
            self._tree.offload(segment)
            self._push("host", segment)
        else:
            self._tree.evict(segment)
        self._push("device", parent)
        return True

    def evict_host(self) -> bool:
        """Drop one segment of the host."""
        segment = self._pop("host")
        if segment is None:
            return False
        parent = segment.parent
        self._tree.drop(segment)
        self._push("host", parent)
        return True

    def make_host_room(self, nbytes: int) -> bool:
        """Drop what the host holds until `nbytes` more fit; False if they cannot."""
        return self._fits_host(nbytes, None)

    def _fits_host(self, nbytes: int, instead_of: Segment | None) -> bool:
        """A segment that would itself be the next to go from the host takes no other's place there."""
        limit = self._tree.host_limit
        if nbytes > limit:
            return False
        while self._tree.host.nbytes + nbytes > limit:
            heap = self._heap("host")
            first = next((entry for entry in heap[:1]), None)
            if first is None or (instead_of is not None and first[0] > self._rank(instead_of)):
                return False
            self.evict_host()
        return True

    def _pop(self, state: State) -> Segment | None:
        heap = self._heap(state)
        while heap:
            segment = heapq.heappop(heap)[-1]
            if self._may_leave(state, segment):
                return segment
        return None

    def _push(self, state: State, segment: Segment | None) -> None:
        if segment is None or state not in self._heaps or not self._may_leave(state, segment):
            return
        heapq.heappush(self._heaps[state], (self._rank(segment), -segment.start, next(self._order), segment))

    def _heap(self, state: State) -> list[_Entry]:
        """Built when first asked for."""
        if state not in self._heaps:
            self._heaps[state] = []
            for segment in self._tree.root.below():
                self._push(state, segment)
        return self._heaps[state]

    def _rank(self, segment: Segment) -> tuple[float, ...]:
        return self._tree.policy.order(segment, self._tree.clock)

    def _may_leave(self, state: State, segment: Segment) -> bool:
        linked = segment.parent is not None and segment.parent.children.get(segment.link) is segment
        if not linked or segment.readers or segment.state != state:
            return False
        if state == "host":
            return not segment.children
        return all(child.state == "host" for child in segment.children.values())
