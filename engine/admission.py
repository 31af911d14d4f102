"""Who may use the device's KV bytes: rows are admitted only with room for all they can come to need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from engine.kv import KVShape, TensorKV
from engine.kv_segment import nbytes_in
from engine.kv_tree import KVBudgetError, KVTree, Segment
from engine.row_kv import RowKV


@dataclass(slots=True, eq=False)
class Claim:
    """What admitted rows may still use, in bytes. missing: path tokens that are computed first and then held by the
    tree; row: what one row comes to need behind the path.

    pin: the end of the path's held part. computing: where the missing tokens are being computed. running: rows' KV.
    approximate: the rows' KV is, or is computed behind, KV that ASKS approximated. stored: ended rows may be held.
    """

    path: tuple[int, ...]
    new_tokens: int
    rows: int
    pin: Segment
    missing: int
    row: int
    computing: RowKV | None = None
    running: list[RowKV] = field(default_factory=list)
    approximate: bool = False
    stored: bool = True

    @property
    def computed(self) -> bool:
        return self.pin.end == len(self.path)

    @property
    def nbytes(self) -> int:
        return self.missing + self.rows * self.row


@dataclass(slots=True, eq=False)
class Admission:
    """Claims on one tree's budget; pinned segments and claims never exceed it together."""

    tree: KVTree
    shape: KVShape
    claims: list[Claim] = field(default_factory=list)
    scratch: list[RowKV] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tree.outside = self.buffer_bytes

    def buffer_bytes(self) -> int:
        """Bytes of running rows, and of what is only looked at, on the device now."""
        rows = [row for claim in self.claims for row in (*claim.running, claim.computing) if row is not None]
        return sum(row.nbytes for row in (*rows, *self.scratch))

    def admit(
        self, path: tuple[int, ...], new_tokens: int, rows: int, least: int = 1, approximate: bool = False
    ) -> Claim | None:
        """Pin what is held of `path`, on the device, for as many of `rows` rows as fit; None if fewer than `least`.

        With nothing else admitted one row is enough, and if even that does not fit beside a path that is held in
        pieces, these are dropped to be computed anew. approximate: KV that ASKS approximated serves, too.
        """
        while True:
            end = self.tree.reach(path, approximate)
            self.tree.pin(end)
            try:
                claim = self._claim(path, new_tokens, rows, end)
                if claim.rows < rows and self.tree.limit is not None and self.tree.detach(end):
                    claim = self._claim(path, new_tokens, rows, end)
                if claim.rows >= (least if self.claims else 1):
                    self.tree.restore(end)
                    self.claims.append(claim)
                    return claim
            except BaseException:
                self.tree.unpin(end)
                raise
            self.tree.unpin(end)
            if self.claims or end is self.tree.root:
                return None
            self.tree.evict(end.path()[0])

    def leave(self, claim: Claim) -> None:
        claim.computing, claim.running = None, []
        self.claims.remove(claim)
        self.tree.unpin(claim.pin)

    def refusal(self, length: int, new_tokens: int) -> str | None:
        """Why one row behind a path of `length` held tokens can never run, or None."""
        limit, needed = self.tree.limit, needed_alone(self.shape, length, new_tokens)
        if limit is None or needed <= limit:
            return None
        what = f"one branch of {length + 1} path tokens and {new_tokens} new ones"
        return f"{what} needs {needed} bytes of KV, given {limit}"

    # -- rows ------------------------------------------------------------------------------------------------------
    def compute(self, claim: Claim) -> RowKV:
        """The row in which the missing tokens of the claim's path are to be computed."""
        most = len(claim.path) - claim.pin.end
        self._take(claim.missing)
        claim.computing = RowKV(self.shape, spans_of(claim.pin), most, chunk=most)
        claim.computing.reserve(most)
        return claim.computing

    def computed(self, claim: Claim) -> None:
        """The missing tokens are in place: the tree holds them, pinned, in the memory they were computed in."""
        row = claim.computing
        if row is None:
            raise RuntimeError("nothing was computed")
        claim.computing = None
        self._forget_beyond(claim)
        pin = self.tree.insert(claim.path, row.payload, beside=claim.pin if claim.approximate else None)
        self.tree.pin(pin)
        self.tree.unpin(claim.pin)
        claim.pin, claim.missing = pin, 0

    def run(self, claim: Claim, whole: bool = False) -> RowKV:
        """One more of the claim's rows behind its held path; whole: all its memory at once."""
        row = RowKV(self.shape, spans_of(claim.pin), claim.new_tokens)
        claim.running.append(row)
        if whole:
            self.grow(row, claim.new_tokens)
        return row

    def grow(self, row: RowKV, tokens: int) -> None:
        """Room for `tokens` more tokens, so that the model's pass allocates no KV."""
        if missing := row.missing_bytes(tokens):
            self._take(missing)
            row.reserve(tokens)

    def end(self, claim: Claim, row: RowKV, tokens: tuple[int, ...] | None) -> None:
        """The row has ended; the tree holds `tokens`, the row's path, if there is room for them (None: not wanted)."""
        given = row.nbytes if len(row.own) == 1 else 0
        if given:
            claim.running.remove(row)
        if tokens is not None and claim.stored and row.length == len(tokens):
            beside = claim.pin if claim.approximate else None
            self.tree.store(tokens, row.payload, self.shape.bytes_per_token, given, beside)
        if not given:
            claim.running.remove(row)

    @contextmanager
    def aside(self, spans: Sequence[TensorKV], tokens: int) -> Iterator[RowKV | None]:
        """A row behind `spans` to look at something, dropped afterwards; None without room beside what is pinned."""
        nbytes = tokens * self.shape.bytes_per_token
        admitted = sum(claim.nbytes for claim in self.claims)
        limit = self.tree.limit
        if limit is not None and self.tree.device.pinned + admitted + self._scratch_bytes + nbytes > limit:
            yield None
            return
        self._take(nbytes)
        row = RowKV(self.shape, spans, tokens, chunk=tokens)
        row.reserve(tokens)
        self.scratch.append(row)
        try:
            yield row
        finally:
            self.scratch.remove(row)

    @property
    def _scratch_bytes(self) -> int:
        return sum(row.nbytes for row in self.scratch)

    # -- books -----------------------------------------------------------------------------------------------------
    def check_integrity(self) -> None:
        """Raise RuntimeError if the books do not balance or the budget is exceeded."""
        self.tree.check_integrity()
        limit = self.tree.limit
        if limit is not None and max(self.tree.device.nbytes + self.buffer_bytes(), self.tree.peak_bytes) > limit:
            raise RuntimeError(f"more than the {limit} bytes of KV given are in use, or were once")
        if self.tree.host.nbytes > self.tree.host_limit:
            raise RuntimeError(f"{self.tree.host.nbytes} bytes on the host, {self.tree.host_limit} given")
        if not self.claims and any(segment.readers for segment in self.tree.segments()):
            raise RuntimeError("segments have readers, but nothing runs")

    def _take(self, nbytes: int) -> None:
        """Make room for an allocation that was admitted."""
        if not self.tree.make_room(nbytes):
            raise KVBudgetError(f"no room for {nbytes} bytes that were admitted")

    def _forget_beyond(self, claim: Claim) -> None:
        """Others may have stored some of the missing tokens meanwhile, in memory that this claim does not cover."""
        below = claim.pin if claim.approximate else None
        for node in self.tree.reach(claim.path, claim.approximate, below).path()[len(claim.pin.path()) :]:
            if not node.readers and (self.tree.limit is not None or node.state == "host"):
                self.tree.release(node.key)
                return

    def _claim(self, path: tuple[int, ...], new_tokens: int, rows: int, end: Segment) -> Claim:
        """For as many of `rows` rows as fit, maybe none. end: the pinned end of what is held of `path`."""
        unit = self.shape.bytes_per_token
        claim = Claim(path, new_tokens, rows, end, (len(path) - end.end) * unit, new_tokens * unit)
        claim.approximate = end.approximate
        limit = self.tree.limit
        if limit is not None:
            restored = nbytes_in(end.path(), "host")
            free = limit - self.tree.device.pinned - restored - sum(other.nbytes for other in self.claims)
            claim.rows = max(min(rows, (free - claim.missing) // max(claim.row, 1)), 0)
        return claim


def needed_alone(shape: KVShape, length: int, new_tokens: int) -> int:
    """Bytes for one row behind `length` held tokens when nothing else is held."""
    return (length + new_tokens) * shape.bytes_per_token


def spans_of(end: Segment) -> list[TensorKV]:
    """KV of the path to `end`, all of it on the device."""
    return [segment.payload for segment in end.path() if isinstance(segment.payload, TensorKV)]
