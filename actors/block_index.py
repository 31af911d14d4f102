"""Which engine holds which prefix: an index by tree segment, fed by event batches. A cache, never the truth."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from actors.messages import Ack, Digest, EventBatch, Memory
from engine.sketch import nearness

LEASE_S = 5.0
"""A holder that was not heard of for so long is not used."""
RENEWAL_S = 1.0
"""How often a holder speaks at least."""
_FORGOTTEN_LEASES = 12
_NAMES = 1 << 16


@dataclass(slots=True)
class Holder:
    """What one incarnation of an engine holds: (parent's key, end) by key. bit: its own in the masks of `BlockIndex`.

    memory, refused: as it told last. proposed, asked_s: what it was asked to drop last, and when.
    """

    incarnation: int
    bit: int
    heard_s: float
    next_seq: int = 0
    keys: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    digest: Digest = field(default_factory=Digest)
    signatures: dict[bytes, bytes] = field(default_factory=dict)
    memory: Memory | None = None
    refused: frozenset[bytes] = frozenset()
    proposed: frozenset[bytes] = frozenset()
    asked_s: float = -math.inf


class BlockIndex:
    """lease_s: infinite where holders cannot die without notice, in this process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, lease_s: float = math.inf) -> None:
        self.clock = clock
        self.lease_s = lease_s
        self.counts = {"resyncs": 0, "stale": 0, "mismatches": 0, "expired": 0}
        self._holders: dict[str, Holder] = {}
        self._masks: dict[bytes, int] = {}
        self._live: dict[str, Holder] = {}
        self._live_until_s = -math.inf
        self._names: dict[int, frozenset[str]] = {}
        self._swept_s = clock()

    def apply(self, batch: EventBatch) -> Ack:
        """Take a batch. "resync": a batch is missing or the digests differ, send a snapshot; "stale": an older
        incarnation, ignored."""
        now = self.clock()
        self._sweep(now)
        holder = self._holders.get(batch.actor)
        if holder is not None and batch.incarnation < holder.incarnation:
            self.counts["stale"] += 1
            return "stale"
        if holder is None or batch.incarnation > holder.incarnation:
            self.forget(batch.actor)
            holder = self._holders[batch.actor] = Holder(batch.incarnation, self._free_bit(), now)
        if batch.seq < holder.next_seq:
            return "ok"
        holder.heard_s = now
        if batch.actor not in self._live:
            self._live_until_s = -math.inf
        if batch.seq > holder.next_seq and not batch.snapshot:
            self.counts["resyncs"] += 1
            return "resync"
        self._take(holder, batch)
        if batch.digest is None or batch.digest == holder.digest:
            return "ok"
        self.counts["mismatches"] += 1
        return "resync"

    def forget(self, actor: str) -> None:
        """The engine is gone: it holds nothing any more."""
        holder = self._holders.pop(actor, None)
        if holder is not None:
            self._unmask(holder, holder.keys)
            self._live.pop(actor, None)
            self._names.clear()

    # -- reading: holders whose lease has run out hold nothing until they are heard of again --------------------------
    def live(self, actor: str) -> Holder | None:
        self._end_leases()
        return self._live.get(actor)

    def held(self, actor: str, keys: Sequence[bytes], ends: Sequence[int]) -> int:
        """Tokens of the longest prefix, given by key and end at each segment, that `actor` holds."""
        holder = self.live(actor)
        if holder is None:
            return 0
        return next((end for key, end in zip(reversed(keys), reversed(ends), strict=True) if key in holder.keys), 0)

    def holders(self, key: bytes) -> frozenset[str]:
        """Engines that hold the prefix."""
        self._end_leases()
        mask = self._masks.get(key, 0)
        found = self._names.get(mask)
        if found is None:
            found = self._names[mask] = frozenset(name for name, h in self._live.items() if mask & h.bit)
        return found

    def replicas(self, keys: Iterable[bytes], besides: str) -> set[bytes]:
        """Those of `keys` that a live engine holds besides this one, and was not asked to drop."""
        own = self._holders[besides].bit
        shared = [key for key in keys if self._masks.get(key, 0) & ~own]
        return {key for key in shared if any(key not in self._live[h].proposed for h in self.holders(key) - {besides})}

    def nearest(self, signature: bytes, actors: Collection[str], least: float) -> str | None:
        """The engine that holds the root with the nearest signature, of those at least `least` near; no KV hit."""
        found = [
            (near, actor)
            for actor in sorted(self._holders)
            if actor in actors and (holder := self.live(actor)) is not None
            for held in holder.signatures.values()
            if (near := nearness(signature, held)) >= least
        ]
        return max(found, key=lambda pair: pair[0])[1] if found else None

    def stats(self) -> dict[str, int]:
        return {
            "segments": len(self._masks),
            "entries": sum(len(holder.keys) for holder in self._holders.values()),
            "holders": len(self._holders),
            "live": sum(self.live(name) is not None for name in self._holders),
            "signatures": sum(len(holder.signatures) for holder in self._holders.values()),
            **self.counts,
        }

    def check_integrity(self) -> None:
        """Raise RuntimeError if the two directions, digests or signatures do not agree."""
        masks: dict[bytes, int] = {}
        for name, holder in self._holders.items():
            for key in holder.keys:
                masks[key] = masks.get(key, 0) | holder.bit
            if holder.digest != Digest().plus(holder.keys):
                raise RuntimeError(f"the digest of {name} is not that of its keys")
            if not holder.signatures.keys() <= holder.keys.keys():
                raise RuntimeError(f"{name} has signatures of what it does not hold")
        if masks != self._masks:
            raise RuntimeError(f"{len(self._masks)} segments by key, {len(masks)} by holder, or others")
        if any(self._holders.get(name) is not holder for name, holder in self._live.items()):
            raise RuntimeError("a holder that is gone counts as live")
        bits = [holder.bit for holder in self._holders.values()]
        if len(set(bits)) != len(bits) or any(bit.bit_count() != 1 for bit in bits):
            raise RuntimeError("two holders share a bit")

    # -- parts -------------------------------------------------------------------------------------------------------
    def _take(self, holder: Holder, batch: EventBatch) -> None:
        holder.next_seq = batch.seq + 1
        if batch.snapshot:
            self._unmask(holder, holder.keys)
            holder.keys, holder.digest, holder.signatures = {}, Digest(), {}
        if batch.dropped:
            self._drop(holder, batch.dropped)
        if batch.added:
            self._add(holder, batch)
        holder.signatures.update((key, found) for key, found in batch.signed if key in holder.keys)
        holder.memory, holder.refused = batch.memory, frozenset(batch.refused)

    def _add(self, holder: Holder, batch: EventBatch) -> None:
        fresh = set(batch.added).difference(holder.keys)
        holder.keys.update(zip(batch.added, zip(batch.parents, batch.ends, strict=True), strict=True))
        holder.digest = holder.digest.plus(fresh)
        masks, bit = self._masks, holder.bit
        for key in fresh:
            masks[key] = masks.get(key, 0) | bit

    def _drop(self, holder: Holder, keys: Iterable[bytes]) -> None:
        gone = {key for key in keys if holder.keys.pop(key, None) is not None}
        holder.digest = holder.digest.minus(gone)
        for key in [key for key in holder.signatures if key in gone]:
            del holder.signatures[key]
        self._unmask(holder, gone)

    def _unmask(self, holder: Holder, keys: Iterable[bytes]) -> None:
        """The holder holds these no more."""
        masks, bit = self._masks, holder.bit
        for key in keys:
            if masks[key] == bit:
                del masks[key]
            else:
                masks[key] ^= bit

    def _end_leases(self) -> None:
        """Which holders are live, and until when at least; `_names` are those of the masks that were asked for."""
        now = self.clock()
        if now < self._live_until_s:
            return
        live = {name: h for name, h in self._holders.items() if now - h.heard_s < self.lease_s}
        if live.keys() != self._live.keys() or len(self._names) > _NAMES:
            self._names.clear()
        self._live = live
        self._live_until_s = min((h.heard_s for h in live.values()), default=math.inf) + self.lease_s

    def _free_bit(self) -> int:
        """The lowest bit that is no holder's."""
        taken = 0
        for holder in self._holders.values():
            taken |= holder.bit
        return ~taken & (taken + 1)

    def _sweep(self, now: float) -> None:
        """Forget holders that were silent for many leases; one of them that speaks again sends a snapshot."""
        if now - self._swept_s < self.lease_s:
            return
        self._swept_s = now
        for actor in [a for a, h in self._holders.items() if now - h.heard_s >= _FORGOTTEN_LEASES * self.lease_s]:
            self.counts["expired"] += 1
            self.forget(actor)
