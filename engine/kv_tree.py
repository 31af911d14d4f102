"""Radix tree of variable-length token segments with their KV: each held token is stored once.

A segment's payload (K and V of its tokens, or nothing in simulation) splits without copying. Running readers pin their
path; pinned segments are never dropped. A segment is on the device, in host memory, or dropped; device bytes, what runs
beside the tree included, are kept below a budget by eviction. Changes are recorded as `KVEvent`s for the block index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from engine.base import KVEvent, key_state, token_bytes
from engine.eviction import LRU, Policy, Scores
from engine.kv_history import Dropped, EventLog
from engine.kv_ledger import WASTE, Ledger
from engine.kv_segment import Match, Nothing, Payload, Segment, State, check_links, extended, nbytes_in
from engine.kv_walk import longest, walk
from engine.residency import Evictor

__all__ = ["KVBudgetError", "KVTree", "Match", "Payload", "Segment"]

_SLACK = 64


class KVBudgetError(RuntimeError):
    """Bytes that were promised at admission are not there: the books are wrong."""


class KVTree:
    """Books of one engine's KV. budget_bytes None is unbounded; 0 keeps nothing between calls and bounds nothing else.

    host_budget_bytes: bytes of evicted segments kept in host memory. outside: bytes of KV on the device that are not
    the tree's. num_bytes counts the tokens held on the device, `device.nbytes` the memory they lie in.
    Approximate KV (ASKS) hangs beside the exact KV of the same tokens: only who asks for it gets it, no other engine is
    told of it. named: called with every segment of exact KV that got a key.
    """

    def __init__(
        self,
        fingerprint: str,
        budget_bytes: int | None = None,
        *,
        policy: Policy | None = None,
        host_budget_bytes: int = 0,
    ) -> None:
        self.root = Segment((), Nothing(), None, 0, key_state(fingerprint))
        self.fingerprint = fingerprint
        self.budget_bytes = budget_bytes
        self.host_budget_bytes = host_budget_bytes
        self.policy: Policy = policy or LRU()
        self.outside: Callable[[], int] = lambda: 0
        self.named: Callable[[Segment], None] | None = None
        self.device, self.host = Ledger(), Ledger()
        self.scores = Scores()
        self.clock = 0
        self.num_tokens = self.num_bytes = self.peak_bytes = 0
        self.num_evicted = self.num_offloaded = self.num_restored = self.num_recomputed = 0
        self._by_key: dict[bytes, Segment] = {}
        self._twins: dict[bytes, Segment] = {}
        self._log = EventLog()
        self._dropped = Dropped()

    # -- reading ---------------------------------------------------------------------------------------------------
    def match(self, tokens: Sequence[int], approximate: bool = False) -> Match:
        """Longest held prefix of `tokens`; what it passes counts as used now. approximate: see `kv_walk.longest`."""
        return self._touched(longest(self.root, tokens, approximate))

    def held(self, tokens: Sequence[int]) -> int:
        """Length of the longest prefix of `tokens` held exactly; nothing counts as used by asking."""
        return walk(self.root, tokens, False).length

    def find(self, key: bytes) -> Segment | None:
        """The segment that ends at `key`."""
        return self._by_key.get(key)

    def segments(self) -> Iterator[Segment]:
        """All segments, parents before children."""
        return (node for node in self.root.below() if node is not self.root)

    # -- writing ---------------------------------------------------------------------------------------------------
    def reach(self, tokens: Sequence[int], approximate: bool = False, below: Segment | None = None) -> Segment:
        """The segment that ends where the held prefix of `tokens` ends, splitting one if need be; the root for none.

        approximate: also in approximate KV. below: look there only, and with `approximate` in approximate KV only.
        """
        found = longest(self.root, tokens, approximate) if below is None else walk(below, tokens, approximate)
        match = self._touched(found, below)
        if match.partial is not None:
            return self._split(match.partial, match.length - match.partial.start)
        return match.segments[-1] if match.segments else below or self.root

    def insert(
        self,
        tokens: Sequence[int],
        cut: Callable[[int, int], Payload],
        state: State = "device",
        beside: Segment | None = None,
    ) -> Segment:
        """Hold KV of `tokens`; `cut(start, stop)` gives the payload, in memory `state`, of what was not held yet.

        Returns the segment that ends exactly at the last token, splitting one if need be. Makes no room. beside: the
        payload is approximate KV behind this segment.
        """
        approximate = beside is not None
        node = self.reach(tokens, approximate, beside)
        if node.end == len(tokens):
            node.asked = True
            return node
        if node.state == "host" and state == "device":
            raise RuntimeError("the path has to be restored before something is held on the device below it")
        tail = tuple(tokens[node.end :])
        payload = cut(node.end, len(tokens))
        segment = Segment(
            tail, payload, node, node.end, extended(node, tail, approximate), used=self.clock, state=state
        )
        segment.approximate = approximate
        node.children[segment.link] = segment
        self.num_tokens += len(tail)
        self._enter(segment)
        self._name(segment)
        if not approximate:
            self._dropped.returned(tokens, node.end, node.hash)
        return segment

    def store(
        self,
        tokens: Sequence[int],
        cut: Callable[[int, int], Payload],
        bytes_per_token: int,
        given: int = 0,
        beside: Segment | None = None,
    ) -> Segment | None:
        """Insert if there is room for it once others have left, on the device or else on the host; None if not.

        `cut` gives a payload that may be part of a larger buffer: it is copied. given: bytes of that buffer if it has
        no other owner any more; then it is kept as it is where little of it would be wasted. What is held is restored
        if it fits. beside: as in `insert`.
        """
        end = self.reach(tokens, beside is not None, beside)
        self.pin(end)
        try:
            size = (len(tokens) - end.end) * bytes_per_token
            kept = bool(given) and (given - size) * WASTE <= given
            if self.make_room((given if kept else size + given) + nbytes_in(end.path(), "host")):
                self.restore(end)
                own = cut if kept else lambda start, stop: cut(start, stop).to_device()
                return self.insert(tokens, own, beside=beside)
            if size and Evictor(self).make_host_room(size):
                return self.insert(tokens, lambda start, stop: cut(start, stop).to_host(), "host", beside)
            return None if size else end
        finally:
            self.unpin(end)

    def pin(self, segment: Segment) -> None:
        """A reader runs on this path: nothing on it may be dropped until `unpin`."""
        for node in segment.path():
            node.readers += 1
            if node.readers == 1:
                self._ledger(node).pin(node)

    def unpin(self, segment: Segment) -> None:
        for node in segment.path():
            node.readers -= 1
            if node.readers == 0:
                self._ledger(node).unpin(node)

    def release(self, key: bytes) -> None:
        """Drop the segment that ends at `key`, all below it, and what only led there; what readers hold stays."""
        for segment in (self._twins.get(key), self._by_key.get(key)):
            for node in [*reversed(list(segment.below())), *segment.partings_above()] if segment else ():
                if not node.children and not node.readers:
                    self.scores.forget(node.key)
                    self._take_out(node)
        self._tidy()

    # -- memory ----------------------------------------------------------------------------------------------------
    @property
    def limit(self) -> int | None:
        """Most bytes on the device at any time."""
        return self.budget_bytes or None

    @property
    def host_limit(self) -> int:
        """Most bytes on the host; an engine that keeps nothing between calls keeps nothing there."""
        return 0 if self.budget_bytes == 0 else self.host_budget_bytes

    def make_room(self, nbytes: int) -> bool:
        """Evict until `nbytes` more fit on the device; False if they do not. Call it before every allocation of KV."""
        if self.limit is not None:
            self._tidy()
            most = self.limit - self.outside() - nbytes
            if nbytes and self.device.pinned > most:
                return False
            if self.device.nbytes > most:
                self._evict_to(most - (self.limit // _SLACK if nbytes else 0))
        self.peak_bytes = max(self.peak_bytes, self.device.nbytes + self.outside() + nbytes)
        return True

    def enforce_budget(self) -> None:
        """Evict until the byte budgets hold or all that is left is pinned."""
        self._tidy()
        if self.budget_bytes == 0:
            self._evict_to(0)
        else:
            self.make_room(0)
        evictor = Evictor(self)
        while self.host.nbytes > self.host_limit and evictor.evict_host():
            self._tidy()

    def restore(self, segment: Segment) -> None:
        """Bring the path to `segment` back to the device; KVBudgetError if there is no room for it."""
        away = [node for node in segment.path() if node.state == "host"]
        if not away:
            return
        self.pin(segment)
        try:
            size = nbytes_in(away, "host")
            if not self.make_room(size):
                raise KVBudgetError(f"no room for {size} bytes to be restored")
            for node in away:
                self._move(node, "device")
                self.num_restored += 1
        finally:
            self.unpin(segment)

    def offload(self, segment: Segment) -> None:
        """The device segment moves to host memory; nothing of the device may be below it."""
        self._move(segment, "host")
        self.num_evicted += 1
        self.num_offloaded += 1

    def evict(self, segment: Segment) -> None:
        """Drop the segment and all below it; none of them may have readers."""
        for node in reversed(list(segment.below())):
            self.drop(node)

    def detach(self, end: Segment) -> bool:
        """Give the path to `end` memory that no other segment shares, so that its pins keep nothing else.

        Parts with other readers than the caller stay, and those for whose copy there is no room. True if any moved.
        """
        path = end.path()
        moved = False
        for node in path:
            size = node.payload.nbytes
            alone = node.state == "host" or self.device.sharers(node) <= set(path)
            if alone or node.readers > 1 or not self.make_room(size):
                continue
            self._move(node, "device")
            moved = True
        return moved

    def drop(self, segment: Segment) -> None:
        """The leaf is evicted for good."""
        self.num_evicted += segment.state == "device"
        if not segment.approximate:
            self._dropped.note(segment.key, segment.start, segment.end)
        self._take_out(segment)

    def count_recomputed(self, tokens: Sequence[int], end: Segment) -> int:
        """Tokens behind `end` are computed now: count those that were held once and evicted."""
        found = self._dropped.among(tokens, end.end, end.hash)
        self.num_recomputed += found
        return found

    def note_scores(self, items: Sequence[tuple[bytes, float, int]]) -> None:
        """(prefix key, score, depth) of judged nodes, held or not. May be called from any thread."""
        for key, omega in self.scores.note(items).items():
            segment = self._by_key.get(key)
            if segment is not None:
                segment.omega = omega

    # -- events and books ------------------------------------------------------------------------------------------
    def events(self) -> list[KVEvent]:
        return self._log.take()

    def snapshot(self) -> list[KVEvent]:
        self._log.shown()
        exact = (segment for segment in self.segments() if not segment.approximate)
        return [KVEvent("add", s.key, s.parent.key if s.parent else b"", s.end) for s in exact]

    def memory(self) -> dict[str, int]:
        """Counters and gauges of bytes, segments evicted, offloaded and restored, and tokens prefilled anew."""
        return {
            "kv_tokens": self.num_tokens,
            "kv_bytes": self.num_bytes,
            "kv_peak_bytes": self.peak_bytes,
            "kv_host_bytes": self.host.nbytes,
            "evicted": self.num_evicted,
            "offloaded": self.num_offloaded,
            "restored": self.num_restored,
            "recomputed_tokens": self.num_recomputed,
        }

    def check_integrity(self) -> None:
        """Raise RuntimeError if the books do not balance."""
        segments = list(self.segments())
        for segment in segments:
            check_links(segment, self.root)
        tokens = sum(len(segment.tokens) for segment in segments)
        nbytes = nbytes_in(segments, "device")
        keys = {segment.key: segment for segment in segments}
        if (tokens, nbytes, keys) != (self.num_tokens, self.num_bytes, self._by_key):
            raise RuntimeError(f"books say {self.num_tokens} tokens, {self.num_bytes} bytes; held {tokens}, {nbytes}")
        self.device.check(segment for segment in segments if segment.state == "device")
        self.host.check(segment for segment in segments if segment.state == "host")

    # -- parts -----------------------------------------------------------------------------------------------------
    def _split(self, segment: Segment, at: int) -> Segment:
        """Cut `segment` behind its first `at` tokens; returns the upper part."""
        parent = segment.parent
        if parent is None:
            raise RuntimeError("the root cannot be split")
        head, tail = segment.payload.split(at)
        hashed = extended(parent, segment.tokens[:at], segment.approximate)
        upper = Segment(segment.tokens[:at], head, parent, segment.start, hashed, readers=segment.readers)
        upper.used, upper.hits, upper.state = segment.used, segment.hits, segment.state
        upper.approximate, upper.asked = segment.approximate, False
        parent.children[upper.link] = upper
        self._leave(segment)
        segment.tokens, segment.payload = segment.tokens[at:], tail
        segment.parent, segment.start = upper, upper.end
        upper.children[segment.tokens[0]] = segment
        self._enter(upper)
        self._enter(segment)
        self._name(upper)
        if not segment.approximate:
            self._log.moved(KVEvent("add", segment.key, upper.key, segment.end))
        return upper

    def _name(self, segment: Segment) -> None:
        """A new segment becomes known by its key."""
        key, parent = segment.key, segment.parent
        self._by_key[key] = segment
        if segment.approximate:
            self._twins[self._exact_key(segment)] = segment
            return
        segment.omega = self.scores.get(key)
        self._log.add(KVEvent("add", key, parent.key if parent else b"", segment.end))
        if self.named is not None:
            self.named(segment)

    def _exact_key(self, segment: Segment) -> bytes:
        """The key that exact KV of the same tokens has: under it others speak of the path."""
        state = self.root.hash.copy()
        for node in segment.path():
            state.update(token_bytes(node.tokens))
        return state.digest()

    def _touched(self, match: Match, below: Segment | None = None) -> Match:
        """The path of a match counts as used now."""
        self.clock += 1
        above = below.path() if below else ()
        for segment in (*above, *match.segments, *([match.partial] if match.partial else ())):
            segment.used = self.clock
            segment.hits += 1
        return match

    def _take_out(self, segment: Segment) -> None:
        if segment.parent is None or segment.children or segment.readers:
            raise RuntimeError("only a leaf without readers can be dropped")
        del segment.parent.children[segment.link]
        del self._by_key[segment.key]
        if segment.approximate and self._twins.get(twin := self._exact_key(segment)) is segment:
            del self._twins[twin]
        self.num_tokens -= len(segment.tokens)
        self._leave(segment)
        if not segment.approximate:
            self._log.drop(segment.key)

    def _move(self, segment: Segment, state: State) -> None:
        payload = segment.payload.to_host() if state == "host" else segment.payload.to_device()
        self._leave(segment)
        segment.payload, segment.state = payload, state
        self._enter(segment)

    def _enter(self, segment: Segment) -> None:
        self._ledger(segment).add(segment)
        self.num_bytes += nbytes_in([segment], "device")

    def _leave(self, segment: Segment) -> None:
        self._ledger(segment).remove(segment)
        self.num_bytes -= nbytes_in([segment], "device")

    def _ledger(self, segment: Segment) -> Ledger:
        return self.device if segment.state == "device" else self.host

    def _evict_to(self, nbytes: int) -> None:
        evictor = Evictor(self)
        while self.device.nbytes > nbytes and evictor.evict():
            self._tidy()

    def _tidy(self) -> None:
        """Free what split segments waste, on either memory."""
        outside = self.outside() if self.device.loose else 0
        most = self.device.compact(None if self.limit is None else self.limit - outside)
        self.peak_bytes = max(self.peak_bytes, most + outside)
        self.host.compact(self.host_limit)
