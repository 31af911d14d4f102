"""Which engine holds which prefix: an index by tree segment, fed by event batches. A cache, never the truth."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from actors.messages import EventBatch
from engine.sketch import nearness

Ack = Literal["ok", "resync", "stale"]


@dataclass(slots=True)
class _Holder:
    incarnation: int
    next_seq: int = 0
    keys: dict[bytes, int] = field(default_factory=dict)
    signatures: dict[bytes, bytes] = field(default_factory=dict)


class BlockIndex:
    """Holders by prefix key, and omega = score / (depth + 1) of judged segments."""

    def __init__(self) -> None:
        self._holders: dict[str, _Holder] = {}
        self._by_key: dict[bytes, set[str]] = {}
        self._omega: dict[bytes, float] = {}

    def apply(self, batch: EventBatch) -> Ack:
        """Take a batch. "resync": a batch is missing, send a snapshot; "stale": an older incarnation, ignored."""
        holder = self._holders.get(batch.actor)
        if holder is not None and batch.incarnation < holder.incarnation:
            return "stale"
        if holder is None or batch.incarnation > holder.incarnation:
            self.forget(batch.actor)
            holder = self._holders[batch.actor] = _Holder(batch.incarnation)
        if batch.seq < holder.next_seq:
            return "ok"
        if batch.snapshot:
            self._clear(batch.actor, holder)
        elif batch.seq > holder.next_seq:
            return "resync"
        holder.next_seq = batch.seq + 1
        for event in batch.events:
            if event.op == "add":
                holder.keys[event.key] = event.end
                self._by_key.setdefault(event.key, set()).add(batch.actor)
            elif event.op == "sign":
                if event.key in holder.keys:
                    holder.signatures[event.key] = event.signature
            else:
                self._drop(batch.actor, holder, event.key)
        return "ok"

    def forget(self, actor: str) -> None:
        """The engine is gone: it holds nothing any more."""
        holder = self._holders.pop(actor, None)
        if holder is not None:
            self._clear(actor, holder)

    def held(self, actor: str, keys: Sequence[bytes], ends: Sequence[int]) -> int:
        """Tokens of the longest prefix, given by key and end at each segment, that `actor` holds."""
        for key, end in zip(reversed(keys), reversed(ends), strict=True):
            if actor in self._by_key.get(key, ()):
                return end
        return 0

    def holders(self, key: bytes) -> frozenset[str]:
        return frozenset(self._by_key.get(key, ()))

    def nearest(self, signature: bytes, actors: Collection[str], least: float) -> str | None:
        """The engine that holds the root with the nearest signature, of those at least `least` near; no KV hit."""
        found = [
            (near, actor)
            for actor, holder in sorted(self._holders.items())
            if actor in actors
            for held in holder.signatures.values()
            if (near := nearness(signature, held)) >= least
        ]
        return max(found, key=lambda pair: pair[0])[1] if found else None

    def note_score(self, key: bytes, score: float, depth: int) -> None:
        """Keep omega of the segment ending at `key` while somebody holds it."""
        if key in self._by_key:
            self._omega[key] = score / (depth + 1)

    def omega(self, key: bytes) -> float | None:
        return self._omega.get(key)

    def stats(self) -> dict[str, int]:
        return {
            "segments": len(self._by_key),
            "entries": sum(len(holder.keys) for holder in self._holders.values()),
            "holders": len(self._holders),
            "scored": len(self._omega),
            "signatures": sum(len(holder.signatures) for holder in self._holders.values()),
        }

    def _clear(self, actor: str, holder: _Holder) -> None:
        for key in list(holder.keys):
            self._drop(actor, holder, key)

    def _drop(self, actor: str, holder: _Holder, key: bytes) -> None:
        holder.keys.pop(key, None)
        holder.signatures.pop(key, None)
        actors = self._by_key.get(key)
        if actors is None:
            return
        actors.discard(actor)
        if not actors:
            del self._by_key[key]
            self._omega.pop(key, None)
