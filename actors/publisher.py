"""Tells the block index what an engine holds: changes coalesced, one batch in flight, repeated until it is answered."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from actors.block_index import RENEWAL_S
from actors.messages import KEY_BYTES, MAX_SIGNATURE, Digest, EventBatch, Memory, Reply, pack
from engine.base import KVEvent

COALESCE_S = 0.01
MANY = 256
MOST = 4096
_RETRY_S = 0.05
_BACKLOG = 1 << 16

Publish = Callable[[bytes], Reply]


class Publisher:
    """note: any thread, waits for nothing. pump: one thread, waits for the index.

    publish: hands a batch to the index and returns its reply; whatever it raises means that the batch may be lost.
    held: what the engine holds at the start. memory: KV on the device, for an engine that takes proposals.
    A change goes out at once if nothing did for `COALESCE_S`, else when that has passed or `MANY` keys have changed;
    without changes a batch that says "alive", with the digest of all keys, goes out every `RENEWAL_S`.
    """

    def __init__(
        self,
        actor: str,
        incarnation: int,
        publish: Publish,
        held: Iterable[KVEvent] = (),
        *,
        memory: Callable[[], Memory | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.actor = actor
        self.incarnation = incarnation
        self.clock = clock
        self.counts = {"batches": 0, "entries": 0, "lost": 0, "snapshots": 0, "malformed": 0}
        self._publish = publish
        self._memory = memory
        self._inbox: deque[Sequence[KVEvent]] = deque()
        self._held: dict[bytes, tuple[bytes, int]] = {}
        self._signatures: dict[bytes, bytes] = {}
        self._xor = 0
        self._changed: dict[bytes, None] = {}
        self._signed: dict[bytes, None] = {}
        self._opening = False
        self._open_s = self._calm_s = -math.inf
        self._refused: tuple[bytes, ...] = ()
        self._proposed: tuple[bytes, ...] = ()
        self._in_flight: bytes | None = None
        self._seq = self._failures = 0
        self._spoke_s = -math.inf
        self.note(list(held))

    def note(self, events: Sequence[KVEvent]) -> None:
        """What changed, oldest first."""
        if events:
            self._inbox.append(events)

    def refuse(self, keys: Sequence[bytes]) -> None:
        """Proposals that the engine did not follow; the next batch says so."""
        self._refused = tuple(keys)

    @property
    def has_proposals(self) -> bool:
        return bool(self._proposed)

    def proposed(self) -> tuple[bytes, ...]:
        """Keys that the index proposed to drop since the last call."""
        keys, self._proposed = self._proposed, ()
        return keys

    def pump(self) -> float:
        """Send a batch if one is due; returns the seconds until the next one is, if nothing changes before."""
        self._fold()
        if (wait := self._due_s() - self.clock()) > 0:
            return wait
        self._send()
        return max(self._due_s() - self.clock(), 0.0)

    def flush(self) -> None:
        """Send what has changed, now and whatever the clock says, until the index has all of it, does not answer, or
        asks for a second snapshot."""
        most = self.counts["snapshots"] + 1
        self._fold()
        while self._changed or self._opening or self._in_flight is not None:
            if self.counts["snapshots"] > most or not self._send():
                return
            self._fold()

    # -- parts -------------------------------------------------------------------------------------------------------
    def _due_s(self) -> float:
        if self._failures:
            return self._spoke_s + min(_RETRY_S * (1 << min(self._failures, 8)), RENEWAL_S)
        if self._opening:
            return self._open_s
        if len(self._changed) >= MANY:
            return self._spoke_s
        return self._spoke_s + (COALESCE_S if self._changed else RENEWAL_S)

    def _fold(self) -> None:
        """Take in what was noted. Changes of one key are one change."""
        while self._inbox:
            for event in self._inbox.popleft():
                if not _sound(event):
                    self.counts["malformed"] += 1
                elif event.op == "add":
                    self._add(event)
                elif event.op == "drop":
                    self._drop(event.key)
                elif event.key in self._held:
                    self._signatures[event.key] = event.signature
                    self._signed[event.key] = self._changed[event.key] = None
        if len(self._changed) > _BACKLOG + 2 * len(self._held):
            self._begin_snapshot()

    def _add(self, event: KVEvent) -> None:
        if event.key not in self._held:
            self._xor ^= int.from_bytes(event.key)
        self._held[event.key] = (event.parent or bytes(KEY_BYTES), event.end)
        self._changed[event.key] = None

    def _drop(self, key: bytes) -> None:
        if self._held.pop(key, None) is not None:
            self._xor ^= int.from_bytes(key)
        self._signatures.pop(key, None)
        self._signed.pop(key, None)
        self._changed[key] = None

    def _send(self) -> bool:
        """One batch, the one in flight again if it was not answered; whether the index took it."""
        if self._in_flight is None:
            self._in_flight = pack(self._batch())
        try:
            reply = self._publish(self._in_flight)
        except Exception:  # the index is a cache of facts: without it placement is worse, answers are the same
            reply = Reply("bad")
        self._spoke_s = self.clock()
        if reply.ack == "bad":
            self._failures += 1
            self.counts["lost"] += 1
            return False
        self._in_flight, self._failures = None, 0
        self._proposed = reply.evict or self._proposed
        if reply.ack == "resync":
            self._begin_snapshot()
        return reply.ack != "stale"

    def _begin_snapshot(self) -> None:
        """Of all that is held, at once, but not more than one in `RENEWAL_S`."""
        self.counts["snapshots"] += 1
        self._open_s = max(self.clock(), self._calm_s)
        self._calm_s = self._open_s + RENEWAL_S
        self._opening = True
        self._changed = dict.fromkeys(self._held)
        self._signed = dict.fromkeys(self._signatures)

    def _batch(self) -> EventBatch:
        """What is to be told, `MOST` keys of it at most."""
        keys = list(islice(self._changed, MOST))
        for key in keys:
            del self._changed[key]
        added = tuple(key for key in keys if key in self._held)
        signed = [key for key in self._signed if key not in self._changed]
        for key in signed:
            del self._signed[key]
        batch = EventBatch(
            self.actor,
            self.incarnation,
            self._seq,
            time.time(),
            added=added,
            parents=tuple(self._held[key][0] for key in added),
            ends=tuple(self._held[key][1] for key in added),
            dropped=tuple(key for key in keys if key not in self._held),
            signed=tuple((key, self._signatures[key]) for key in signed),
            snapshot=self._opening,
            digest=None if self._changed else Digest(len(self._held), self._xor),
            memory=self._memory(),
            refused=self._refused,
        )
        self._seq += 1
        self._opening, self._refused = False, ()
        self.counts["batches"] += 1
        self.counts["entries"] += len(keys)
        return batch


def _sound(event: KVEvent) -> bool:
    """Whether the event has the sizes that go over the wire; an engine of somebody else's may not know them."""
    if len(event.key) != KEY_BYTES or len(event.signature) > MAX_SIGNATURE:
        return False
    return event.op != "add" or (len(event.parent) in (0, KEY_BYTES) and 0 < event.end < 1 << 32)
