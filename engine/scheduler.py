"""Joins the requests of several calls in one running batch: prefill in chunks beside decoding, rows leave when done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from engine import kv
from engine.admission import Admission, Claim
from engine.base import Codec
from engine.decode import Lane, Row, draw_all
from engine.kv_tree import KVTree
from engine.packed import Feed, Forward
from engine.ticket import Ticket

__all__ = ["Scheduler", "Ticket"]


@dataclass(slots=True, eq=False)
class _Prefill:
    """Rows with one path whose KV is being computed."""

    rows: list[Row]
    path: tuple[int, ...]
    claim: Claim


@dataclass(slots=True, eq=False)
class Scheduler:
    """One step at a time; not thread-safe but for `cancel`. max_rows bounds the running rows (a single larger request
    may exceed it), the tree's budget their bytes: a request that does not fit waits, or runs in parts.

    chunk: most tokens prefilled in one step, so that running rows are never stopped for long. closed: how
    many wait for room beside the requests; nothing new starts until they got it.
    """

    forward: Forward
    codec: Codec
    tree: KVTree
    shape: kv.KVShape
    max_rows: int
    clock: Callable[[], float]
    chunk: int = 256
    closed: int = 0
    admission: Admission = field(init=False)
    _waiting: deque[Ticket] = field(default_factory=deque)
    _prefill: _Prefill | None = None
    _lanes: list[Lane] = field(default_factory=list)
    _claims: dict[Row, Claim] = field(default_factory=dict)
    _owner: dict[Row, Ticket] = field(default_factory=dict)
    _cancelled: deque[str] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.admission = Admission(self.tree, self.shape)

    def enqueue(self, ticket: Ticket) -> None:
        self._waiting.append(ticket)

    def cancel(self, ids: Iterable[str]) -> None:
        """The next step ends all rows of these requests and frees what they use; unknown ids are ignored."""
        self._cancelled.extend(ids)

    def step(self) -> None:
        """Admit what fits, run the model once over a chunk of prefill and all decoding rows, let finished rows go."""
        self._end_cancelled()
        self._admit()
        chunk = self._chunk()
        feeds: list[Feed] = [(lane.cohort, lane.inputs(), True) for lane in self._lanes]
        if self._prefill is not None and self._prefill.claim.cohort is not None:
            feeds.append((self._prefill.claim.cohort, [chunk], False))
        if not feeds:
            return
        for lane in self._lanes:
            self.admission.grow(lane.cohort, 1)
        began = self.clock()
        logits = self.forward(feeds)
        feeds.clear()
        rows = [row for lane in self._lanes for row in lane.rows]
        if rows:
            draw_all(logits, rows, self.codec, self.clock())
        self._book(self.clock() - began, len(chunk), rows)
        self._leave()
        self._start()
        self.tree.enforce_budget()

    def fail(self, error: BaseException) -> None:
        """The model raised: everything under way is lost, what is held stays."""
        for ticket in {*self._waiting, *self._owner.values()}:
            ticket.failure, ticket.over = error, True
        for claim in {*self._claims.values(), *([self._prefill.claim] if self._prefill else ())}:
            self.admission.leave(claim)
        self._waiting.clear()
        self._owner.clear()
        self._claims.clear()
        self._prefill, self._lanes = None, []

    def compute(self, claim: Claim) -> None:
        """Compute and hold the missing part of an admitted path now."""
        if not claim.computing:
            return
        self.tree.count_recomputed(claim.path, claim.pin)
        group = self.admission.compute(claim)
        while group.length < len(claim.path):
            self.forward([(group, [claim.path[group.length : group.length + self.chunk]], False)])
        del group
        self.admission.computed(claim)

    # -- admission -------------------------------------------------------------------------------------------------
    def _admit(self) -> None:
        """Start waiting requests in order while rows and bytes are free; one path at a time is prefilled."""
        while self._waiting and self._prefill is None and not self.closed:
            first = self._waiting[0]
            if first.done:
                self._waiting.popleft()
                continue
            running = sum(len(lane.rows) for lane in self._lanes)
            if running and running + len(first.unstarted) > self.max_rows:
                return
            if not self._open(self._alike(first, self.max_rows - running)):
                return

    def _alike(self, first: Ticket, room: int) -> list[Ticket]:
        """`first` and the waiting requests with its path, so that their rows share one cohort."""
        found: list[Ticket] = []
        for ticket in self._waiting:
            alike = ticket.path == first.path and not ticket.done and len(ticket.unstarted) <= room
            if ticket is first or alike:
                found.append(ticket)
                room -= len(ticket.unstarted)
        return found

    def _open(self, tickets: Sequence[Ticket]) -> bool:
        """Admit as many rows of these tickets as fit; False if they have to wait."""
        first = tickets[0]
        rows = [row for ticket in tickets for row in ticket.unstarted]
        longest = max(row.rule.max_tokens for row in rows)
        least = -(-len(first.unstarted) // 2)
        claim = self.admission.admit(first.path[:-1], longest, len(rows), least)
        if claim is None:
            if not self.admission.claims:
                first.error = self.admission.refusal(len(first.path) - 1, longest) or "no room for its KV"
            return not self.admission.claims
        started = rows[: claim.rows]
        self._take(tickets, claim)
        first.prefilled += len(claim.path) - claim.pin.end
        if claim.computing:
            self.tree.count_recomputed(claim.path, claim.pin)
            self.admission.compute(claim)
            self._prefill = _Prefill(started, first.path, claim)
        else:
            self._join(started, first.path, claim)
        return True

    def _take(self, tickets: Sequence[Ticket], claim: Claim) -> None:
        """The first rows of these tickets start, as many as were admitted."""
        count = claim.rows
        for ticket in tickets:
            taken, ticket.unstarted = ticket.unstarted[:count], ticket.unstarted[count:]
            count -= len(taken)
            if not taken:
                break
            if ticket.held is None:
                ticket.held = claim.pin.end if ticket is tickets[0] else len(claim.path)
            self._owner.update(dict.fromkeys(taken, ticket))
            if not ticket.unstarted:
                self._waiting.remove(ticket)

    def _chunk(self) -> tuple[int, ...]:
        if self._prefill is None or self._prefill.claim.cohort is None:
            return ()
        at = self._prefill.claim.cohort.length
        return self._prefill.path[at : min(at + self.chunk, len(self._prefill.path) - 1)]

    def _start(self) -> None:
        """Rows whose path is computed begin to decode."""
        prefill = self._prefill
        if prefill is None or prefill.claim.cohort is None or prefill.claim.cohort.length < len(prefill.claim.path):
            return
        self._prefill = None
        self.admission.computed(prefill.claim)
        self._join(prefill.rows, prefill.path, prefill.claim)

    def _join(self, rows: list[Row], path: tuple[int, ...], claim: Claim) -> None:
        """Rows begin to decode; without a byte budget they share a lane with rows behind the same prefix.

        A shared lane has columns for its longest row, which a budget by claims does not foresee.
        """
        claim.rows = len(rows)
        cohort = self.admission.run(claim)
        self._claims.update(dict.fromkeys(rows, claim))
        lane = next((lane for lane in self._lanes if self.tree.limit is None and lane.takes(cohort, path)), None)
        if lane is None:
            self._lanes.append(Lane(cohort, rows))
            return
        lane.cohort.join(cohort)
        lane.rows += rows
        claim.cohort = lane.cohort

    # -- finishing -------------------------------------------------------------------------------------------------
    def _end_cancelled(self) -> None:
        ids = {self._cancelled.popleft() for _ in range(len(self._cancelled))}
        if not ids:
            return
        for ticket in {*self._waiting, *self._owner.values()}:
            if ticket.request.id in ids:
                ticket.cancel()
        self._waiting = deque(ticket for ticket in self._waiting if not ticket.done)
        self._leave(store=False)
        prefill = self._prefill
        if prefill is not None:
            for row in [row for row in prefill.rows if row.finish is not None]:
                prefill.rows.remove(row)
                del self._owner[row]
            prefill.claim.rows = len(prefill.rows)
            if not prefill.rows:
                self.admission.leave(prefill.claim)
                self._prefill = None

    def _leave(self, store: bool = True) -> None:
        """Let finished rows go; their KV is stored in the tree, once, if there is room for it."""
        for lane in self._lanes:
            finished = [i for i, row in enumerate(lane.rows) if row.finish is not None]
            if not finished:
                continue
            for i in finished:
                if store:
                    self._store(lane, i)
            gone = [lane.rows[i] for i in finished]
            self.admission.shrink(lane.cohort, len(lane.rows) - len(finished))
            lane.keep_running()
            for row in gone:
                self._let_go(row)
        self._lanes = [lane for lane in self._lanes if lane.rows]

    def _let_go(self, row: Row) -> None:
        del self._owner[row]
        claim = self._claims.pop(row)
        claim.rows -= 1
        if not claim.rows:
            self.admission.leave(claim)

    def _store(self, lane: Lane, i: int) -> None:
        tokens = (*lane.rows[i].path, *lane.rows[i].tokens[:-1])
        cut = lambda start, stop: kv.row_payload(lane.cohort, i, start, stop)  # noqa: E731
        self.tree.store(tokens, cut, self.shape.bytes_per_token)

    def _book(self, seconds: float, prefilled: int, rows: Sequence[Row]) -> None:
        """Share a step's seconds among its tokens, so that all shares add up to the engine's time."""
        each = seconds / max(prefilled + len(rows), 1)
        if self._prefill is not None:
            self._owner[self._prefill.rows[0]].prefill_s += each * prefilled
        for row in rows:
            self._owner[row].decode_s += each
