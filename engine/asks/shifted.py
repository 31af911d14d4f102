"""Tier `shifted`: KV of a chunk that is held at another position, or behind another prefix, is moved and repaired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.admission import Admission, Claim, spans_of
from engine.asks.audit import Audit, compare
from engine.asks.options import Asks
from engine.asks.repair import Wanted, fused, repair
from engine.asks.rope import rotated
from engine.asks.states import States, look
from engine.asks.windows import Chunk, Windows, shares
from engine.kv import TensorKV
from engine.packed import Forward
from engine.row_kv import RowKV

_STEP = 512


@dataclass(slots=True)
class Shifted:
    """Counts: chunks moved, their tokens, and how many tokens of paths with a chunk ran through all layers."""

    options: Asks
    forward: Forward
    admission: Admission
    audit: Audit
    windows: Windows = field(init=False)
    chunks: int = 0
    moved: int = 0
    computed: int = 0

    def __post_init__(self) -> None:
        self.windows = Windows(self.admission.tree)

    def compute(self, claim: Claim, following: int) -> int | None:
        """Compute and hold the missing part of the claim's path with moved chunks; `following` is the token behind it.

        Returns how many tokens ran through all layers; None, with nothing done, if there is no chunk to move, no
        room beside its source, or the audit has switched the tier off.
        """
        chunks = self.windows.chunks(claim.path, claim.pin.end, self.options.least) if self.audit.on else []
        if not chunks:
            return None
        start = claim.pin.end
        row = self._copied(claim, chunks)
        if row is None:
            return None
        claim.approximate = True
        full = repair(self.forward, row, claim.path[start:], self._wanted(chunks, start))
        self.admission.computed(claim)
        self.chunks += len(chunks)
        self.moved += sum(chunk.stop - chunk.start for chunk in chunks)
        self.computed += full
        if self.audit.due(claim.pin.key):
            self._check(claim, following)
        return full

    def awaits(self, path: tuple[int, ...], computing: Sequence[tuple[int, ...]]) -> bool:
        """Whether a chunk of `path`, tokens that are not held, is in a path that is being computed."""
        return self.audit.on and any(shares(path, other, self.options.least) for other in computing)

    def stats(self) -> dict[str, object]:
        counts = {"shifted_chunks": self.chunks, "shifted_moved": self.moved, "shifted_computed": self.computed}
        return {**counts, **self.audit.stats()}

    def _wanted(self, chunks: Sequence[Chunk], start: int) -> Wanted:
        copied = frozenset(i - start for chunk in chunks for i in range(chunk.start, chunk.stop))
        first = self.options.first
        opening = frozenset(i - start for c in chunks for i in range(c.start, min(c.start + first, c.stop)))
        return Wanted(copied, opening, self.options.ratio)

    def _copied(self, claim: Claim, chunks: Sequence[Chunk]) -> RowKV | None:
        """The row of the missing tokens with the chunks' KV in place; sources stay pinned until they are read."""
        tree = self.admission.tree
        start = claim.pin.end
        for chunk in chunks:
            tree.pin(chunk.end)
        try:
            admitted = sum(other.nbytes for other in self.admission.claims)
            if tree.limit is not None and tree.device.pinned + admitted > tree.limit:
                return None
            row = self.admission.compute(claim)
            for chunk in chunks:
                self._move(chunk, row.own[0].cut(chunk.start - start, chunk.stop - start))
            return row
        finally:
            for chunk in chunks:
                tree.unpin(chunk.end)

    def _move(self, chunk: Chunk, to: TensorKV) -> None:
        inv_freq = fused(self.forward).rotary.inv_freq
        first, last = chunk.source, chunk.source + chunk.stop - chunk.start
        for node in chunk.end.path():
            node.used = self.admission.tree.clock
            begin, end = max(node.start, first), min(node.end, last)
            if begin < end and isinstance(node.payload, TensorKV):
                held = node.payload.cut(begin - node.start, end - node.start)
                place = to.cut(begin - first, end - first)
                place.k.copy_(rotated(held.k, chunk.shift, inv_freq))
                place.v.copy_(held.v)

    def _check(self, claim: Claim, following: int) -> None:
        """Compute all approximate tokens of the path exactly, compare what comes next, and drop them."""
        exact = [node for node in claim.pin.path() if not node.approximate]
        held = exact[-1].end if exact else 0
        tokens = claim.path[held:]
        found = self._computed(spans_of(exact[-1]) if exact else [], tokens, following)
        reused = look(self.forward, self.admission, spans_of(claim.pin), following)
        if found is None or reused is None:
            self.audit.skipped += 1
        else:
            self.audit.note(compare(found.logits, reused.logits))

    def _computed(self, before: list[TensorKV], tokens: tuple[int, ...], following: int) -> States | None:
        """States of `following` behind `before` and `tokens`, which are computed for it; None without room."""
        with self.admission.aside(before, len(tokens)) as row:
            if row is None:
                return None
            for at in range(0, len(tokens), _STEP):
                self.forward([(row, tokens[at : at + _STEP], False)])
            return look(self.forward, self.admission, row.seen(0), following)
