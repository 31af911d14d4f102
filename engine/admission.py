"""Who may use the device's KV bytes: rows are admitted only with room for all they can come to need."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine import kv
from engine.attention import Cohort
from engine.kv_plan import Plan, needed_alone, plan
from engine.kv_tree import KVBudgetError, KVTree, Segment


@dataclass(slots=True, eq=False)
class Claim:
    """What admitted rows may still use. pin: the end of their path's held part; cohort: what they use now."""

    plan: Plan
    rows: int
    pin: Segment
    path: tuple[int, ...]
    computing: bool
    cohort: Cohort | None = None

    @property
    def nbytes(self) -> int:
        return self.plan.most(self.rows) if self.computing else self.plan.running(self.rows)

    @property
    def rebuild(self) -> int:
        return self.plan.rebuild(self.rows)


@dataclass(slots=True, eq=False)
class Admission:
    """Claims on one tree's budget; pinned segments and claims never exceed it together."""

    tree: KVTree
    shape: kv.KVShape
    claims: list[Claim] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tree.outside = self.buffer_bytes

    def buffer_bytes(self) -> int:
        """Bytes of running rows on the device now."""
        return kv.buffer_bytes(self.tree, (claim.cohort for claim in self.claims if claim.cohort is not None))

    def admit(self, path: tuple[int, ...], new_tokens: int, rows: int, least: int = 1) -> Claim | None:
        """Pin what is held of `path`, on the device, for as many of `rows` rows as fit; None if fewer than `least`.

        With nothing else admitted one row is enough, and if even that does not fit beside a path that is held in
        pieces, these are dropped to be computed anew.
        """
        while True:
            end = self.tree.reach(path)
            self.tree.pin(end)
            claim = self._claim(path, new_tokens, rows, end)
            if claim.rows < rows and self.tree.limit is not None and self.tree.detach(end):
                claim = self._claim(path, new_tokens, rows, end)
            if claim.rows >= (least if self.claims else 1):
                self.tree.restore(end)
                self.claims.append(claim)
                return claim
            self.tree.unpin(end)
            if self.claims or end is self.tree.root:
                return None
            self.tree.evict(end.path()[0])

    def leave(self, claim: Claim) -> None:
        claim.cohort = None
        self.claims.remove(claim)
        self.tree.unpin(claim.pin)

    def refusal(self, length: int, new_tokens: int) -> str | None:
        """Why one row behind a path of `length` held tokens can never run, or None."""
        limit, needed = self.tree.limit, needed_alone(self.shape, length, new_tokens)
        if limit is None or needed <= limit:
            return None
        what = f"one branch of {length + 1} path tokens and {new_tokens} new ones"
        return f"{what} needs {needed} bytes of KV, given {limit}"

    def take(self, nbytes: int) -> None:
        """Make room for an allocation that was admitted."""
        if not self.tree.make_room(nbytes):
            raise KVBudgetError(f"no room for {nbytes} bytes that were admitted")

    # -- buffers ---------------------------------------------------------------------------------------------------
    def compute(self, claim: Claim) -> Cohort:
        """One row in which the missing tokens of the claim's path are to be computed."""
        self.take(claim.plan.buffer)
        claim.cohort = kv.cohort(self.tree, self.shape, claim.path, 1, len(claim.path))
        return claim.cohort

    def computed(self, claim: Claim) -> None:
        """The missing tokens are in the claim's cohort: hold them in the tree, pinned, and let the cohort go."""
        group = claim.cohort
        if group is None:
            raise RuntimeError("nothing was computed")
        if claim.plan.clone:
            self.take(claim.plan.clone)
        adopted = not claim.plan.clone
        claim.cohort = None if adopted else group
        self._forget_beyond(claim)
        pin = self.tree.insert(claim.path, lambda start, stop: _own(kv.row_payload(group, 0, start, stop), adopted))
        self.tree.pin(pin)
        self.tree.unpin(claim.pin)
        claim.pin, claim.cohort, claim.computing = pin, None, False

    def run(self, claim: Claim, room: int = 0) -> Cohort:
        """The claim's rows behind its held path, with buffers for `room` tokens in all at once."""
        first = max(claim.plan.start, claim.plan.row if room else 0)
        self.take(claim.plan.shared + claim.rows * first)
        claim.cohort = kv.cohort(self.tree, self.shape, claim.path, claim.rows, max(room, len(claim.path) + 1))
        return claim.cohort

    def grow(self, group: Cohort, tokens: int) -> None:
        """Make room for `tokens` more tokens a row, so that the model's pass allocates no KV."""
        columns = group.private_k.shape[3]
        longer = kv.blocks(max(group.filled) + tokens)
        if longer > columns:
            self.take(group.rows * (longer - columns // 2) * self.shape.bytes_per_token)
            group.reserve(tokens)

    def shrink(self, group: Cohort, staying: int) -> None:
        """Make room for the copy of the rows that stay."""
        if staying:
            self.take(staying * group.private_k.shape[3] * self.shape.bytes_per_token // 2)

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

    def _forget_beyond(self, claim: Claim) -> None:
        """Others may have stored some of the missing tokens meanwhile, in memory that this claim does not cover."""
        for node in self.tree.reach(claim.path).path()[len(claim.pin.path()) :]:
            if not node.readers and (self.tree.limit is not None or node.state == "host"):
                self.tree.release(node.key)
                return

    def _claim(self, path: tuple[int, ...], new_tokens: int, rows: int, end: Segment) -> Claim:
        """For as many of `rows` rows as fit, maybe none. end: the pinned end of what is held of `path`."""
        needs = plan(self.shape, len(path), new_tokens, end.path())
        return Claim(needs, self._fitting(needs, rows), end, path, computing=end.end < len(path))

    def _fitting(self, needs: Plan, rows: int) -> int:
        """How many of `rows` rows fit beside all claims and pinned segments."""
        limit = self.tree.limit
        if limit is None:
            return rows
        free = limit - self.tree.device.pinned - needs.restored - sum(claim.nbytes for claim in self.claims)
        rebuild = max((claim.rebuild for claim in self.claims), default=0)
        fits = (n for n in range(rows, 0, -1) if needs.most(n) + max(rebuild, needs.rebuild(n)) <= free)
        return next(fits, 0)


def _own(payload: kv.TensorKV, adopted: bool) -> kv.TensorKV:
    return payload if adopted else payload.copy()
