"""Joins the requests of several calls in one running batch: prefill in chunks beside decoding, rows leave when done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine import kv
from engine.attention import Cohort
from engine.base import BranchRequest, BranchResult, Codec, Usage, flat
from engine.decode import Lane, Row, draw_all
from engine.kv_tree import KVTree, Segment
from engine.packed import Feed, Forward


@dataclass(slots=True, eq=False)
class Ticket:
    """A request under way, or its result. held: path tokens whose KV was there when it started."""

    request: BranchRequest
    path: tuple[int, ...]
    rows: list[Row]
    held: int = 0
    prefilled: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    error: str | None = None
    failure: BaseException | None = None
    over: bool = False

    @classmethod
    def of(cls, request: BranchRequest, now: float) -> Ticket:
        until = None if request.deadline_s is None else now + request.deadline_s
        settings = (request.rule, request.temperature, request.top_p, until)
        return cls(request, flat(request.path), [Row(stream, *settings) for stream in request.streams])

    @property
    def done(self) -> bool:
        return self.over or self.error is not None or all(row.finish is not None for row in self.rows)

    def result(self, codec: Codec) -> BranchResult:
        if self.error is not None:
            return BranchResult(self.request.id, error=self.error)
        branches = tuple(row.branch(codec) for row in self.rows)
        usage = Usage(
            generated=sum(len(branch.token_ids) for branch in branches),
            prefilled=self.prefilled,
            reused={"exact": len(branches) * (len(self.path) - 1) - self.prefilled},
            held=self.held,
            seconds={"prefill": self.prefill_s, "decode": self.decode_s},
        )
        return BranchResult(self.request.id, branches, usage)


@dataclass(slots=True, eq=False)
class _Prefill:
    """Requests with one path whose KV is being computed. pin: the held part they started from."""

    tickets: list[Ticket]
    tokens: tuple[int, ...]
    cohort: Cohort
    pin: Segment | None


@dataclass(slots=True, eq=False)
class Scheduler:
    """One step at a time; not thread-safe. max_rows bounds the running rows (a single larger request may exceed it).

    chunk: most tokens prefilled in one step, so that running rows are never stopped for long.
    """

    forward: Forward
    codec: Codec
    tree: KVTree
    shape: kv.KVShape
    max_rows: int
    clock: Callable[[], float]
    chunk: int = 256
    _waiting: deque[Ticket] = field(default_factory=deque)
    _prefill: _Prefill | None = None
    _lanes: list[Lane] = field(default_factory=list)
    _owner: dict[Row, Ticket] = field(default_factory=dict)

    def enqueue(self, ticket: Ticket) -> None:
        self._waiting.append(ticket)

    def step(self) -> None:
        """Admit what fits, run the model once over a chunk of prefill and all decoding rows, let finished rows go."""
        self._admit()
        feeds: list[Feed] = [(lane.cohort, lane.inputs(), True) for lane in self._lanes]
        chunk: tuple[int, ...] = ()
        if self._prefill is not None:
            at = self._prefill.cohort.length
            chunk = self._prefill.tokens[at : at + self.chunk]
            feeds.append((self._prefill.cohort, [chunk], False))
        if not feeds:
            return
        began = self.clock()
        logits = self.forward(feeds)
        rows = [row for lane in self._lanes for row in lane.rows]
        if rows:
            draw_all(logits, rows, self.codec, self.clock())
        self._book(self.clock() - began, len(chunk), rows)
        self._leave()
        if self._prefill is not None and self._prefill.cohort.length == len(self._prefill.tokens):
            self._start(self._prefill)
        self.tree.enforce_budget()

    def fail(self, error: BaseException) -> None:
        """The model raised: everything under way is lost, what is held stays."""
        tickets = {*self._waiting, *self._owner.values(), *(self._prefill.tickets if self._prefill else ())}
        for ticket in tickets:
            ticket.failure, ticket.over = error, True
        for lane in self._lanes:
            self._unpin(lane.pin)
        if self._prefill is not None:
            self._unpin(self._prefill.pin)
        self._waiting.clear()
        self._owner.clear()
        self._prefill, self._lanes = None, []

    def hold(self, tokens: Sequence[int]) -> Segment | None:
        """Compute and hold the KV of `tokens` now; returns the pinned end segment (None for no tokens)."""
        if not tokens:
            return None
        cohort = kv.cohort(self.tree, self.shape, tokens, 1)
        while cohort.length < len(tokens):
            self.forward([(cohort, [tokens[cohort.length : cohort.length + self.chunk]], False)])
        return self._insert_pinned(tokens, cohort)

    # -- admission -------------------------------------------------------------------------------------------------
    def _admit(self) -> None:
        """Start waiting requests in order while rows are free; one path at a time is prefilled."""
        while self._waiting and self._prefill is None:
            running = sum(len(lane.rows) for lane in self._lanes)
            first = self._waiting[0]
            if running and running + len(first.rows) > self.max_rows:
                return
            self._open(self._take_alike(first, self.max_rows - running))

    def _take_alike(self, first: Ticket, room: int) -> list[Ticket]:
        """`first` and the waiting requests with its path, so that their rows share one cohort."""
        taken: list[Ticket] = []
        for ticket in list(self._waiting):
            if ticket is first or (ticket.path == first.path and len(ticket.rows) <= room):
                taken.append(ticket)
                room -= len(ticket.rows)
                self._waiting.remove(ticket)
        return taken

    def _open(self, tickets: list[Ticket]) -> None:
        tokens = tickets[0].path[:-1]
        match = self.tree.match(tokens)
        tickets[0].held, tickets[0].prefilled = match.length, len(tokens) - match.length
        for ticket in tickets[1:]:
            ticket.held = len(tokens)
        if match.length == len(tokens):
            self._join(tickets, self.hold(tokens))
            return
        pin = match.partial or (match.segments[-1] if match.segments else None)
        if pin is not None:
            self.tree.pin(pin)
        self._prefill = _Prefill(tickets, tokens, kv.cohort(self.tree, self.shape, tokens, 1), pin)

    def _start(self, prefill: _Prefill) -> None:
        pin = self._insert_pinned(prefill.tokens, prefill.cohort)
        self._unpin(prefill.pin)
        self._prefill = None
        self._join(prefill.tickets, pin)

    def _join(self, tickets: Sequence[Ticket], pin: Segment | None) -> None:
        path = tickets[0].path
        rows = [row for ticket in tickets for row in ticket.rows]
        self._owner.update({row: ticket for ticket in tickets for row in ticket.rows})
        self._lanes.append(Lane(kv.cohort(self.tree, self.shape, path[:-1], len(rows)), rows, path, pin))

    # -- finishing -------------------------------------------------------------------------------------------------
    def _leave(self) -> None:
        """Store the KV of finished rows in the tree, once, and let them go."""
        for lane in self._lanes:
            if all(row.finish is None for row in lane.rows):
                continue
            for i, row in enumerate(lane.rows):
                if row.finish is not None:
                    self._store((*lane.path, *row.tokens[:-1]), lane.cohort, i)
                    del self._owner[row]
            lane.keep_running()
            if not lane.rows:
                self._unpin(lane.pin)
        self._lanes = [lane for lane in self._lanes if lane.rows]

    def _store(self, tokens: Sequence[int], cohort: Cohort, row: int) -> Segment:
        return self.tree.insert(tokens, lambda start, stop: kv.row_payload(cohort, row, start, stop))

    def _insert_pinned(self, tokens: Sequence[int], cohort: Cohort) -> Segment:
        segment = self._store(tokens, cohort, 0)
        self.tree.pin(segment)
        return segment

    def _unpin(self, segment: Segment | None) -> None:
        if segment is not None:
            self.tree.unpin(segment)

    def _book(self, seconds: float, prefilled: int, rows: Sequence[Row]) -> None:
        """Share a step's seconds among its tokens, so that all shares add up to the engine's time."""
        each = seconds / max(prefilled + len(rows), 1)
        if self._prefill is not None:
            self._prefill.tickets[0].prefill_s += each * prefilled
        for row in rows:
            self._owner[row].decode_s += each
