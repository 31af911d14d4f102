"""Joins the requests of several calls in one running batch: prefill in chunks beside decoding, rows leave when done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from engine.admission import Admission, Claim
from engine.asks.tiers import Tiers
from engine.base import Codec
from engine.decode import Row, draw_all
from engine.kv import KVShape
from engine.kv_segment import common_length
from engine.kv_tree import KVTree
from engine.packed import Feed, Forward
from engine.ticket import Ticket

__all__ = ["Scheduler", "Ticket"]

_WORTH_WAITING = 16
"""Path tokens that another request is computing: with fewer in common, both compute them."""


@dataclass(slots=True, eq=False)
class _Prefill:
    """Rows with one path whose KV is being computed."""

    rows: list[Row]
    path: tuple[int, ...]
    claim: Claim

    @property
    def missing(self) -> int:
        computing = self.claim.computing
        return len(self.claim.path) - computing.length if computing else 0


@dataclass(slots=True, eq=False)
class Scheduler:
    """One step at a time; not thread-safe but for `enqueue` and `cancel`. max_rows bounds the running rows (a single
    larger request may exceed it), the tree's budget their bytes: a request that does not fit waits, or runs in parts.

    chunk: most tokens prefilled in one step, so that running rows are never stopped for long. closed: how
    many wait for room beside the requests; nothing new starts until they got it. asks: reuse that approximates.
    """

    forward: Forward
    codec: Codec
    tree: KVTree
    shape: KVShape
    max_rows: int
    clock: Callable[[], float]
    chunk: int = 256
    closed: int = 0
    admission: Admission = field(init=False)
    asks: Tiers | None = None
    _waiting: deque[Ticket] = field(default_factory=deque)
    _prefills: list[_Prefill] = field(default_factory=list)
    _running: list[Row] = field(default_factory=list)
    _claims: dict[Row, Claim] = field(default_factory=dict)
    _owner: dict[Row, Ticket] = field(default_factory=dict)
    _arriving: deque[Ticket] = field(default_factory=deque)
    _cancelled: deque[str] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.admission = Admission(self.tree, self.shape)

    def enqueue(self, ticket: Ticket) -> None:
        """The next step takes it in, before it looks at what was cancelled."""
        self._arriving.append(ticket)

    def cancel(self, ids: Iterable[str]) -> None:
        """The next step ends all rows of these requests and frees what they use; unknown ids are ignored."""
        self._cancelled.extend(ids)

    def lengths(self) -> dict[str, int]:
        """Requests that wait to be admitted, and rows that decode."""
        return {"waiting": len(self._waiting) + len(self._arriving), "decode_rows": len(self._running)}

    def step(self) -> None:
        """Admit what fits, run the model once over a chunk of prefill and all decoding rows, let finished rows go."""
        cancelled = {self._cancelled.popleft() for _ in range(len(self._cancelled))}
        while self._arriving:
            ticket = self._arriving.popleft()
            self._waiting.append(ticket)
            if ticket.request.recalled is not None and ticket.request.recalled():
                ticket.cancel()
        now = self.clock()
        self._end(cancelled, now)
        self._admit()
        chunks = self._chunks()
        feeds: list[Feed] = []
        for row in self._running:
            if row.kv is not None:
                self.admission.grow(row.kv, 1)
                feeds.append((row.kv, [row.newest], True))
        feeds += [(computing, chunk, False) for prefill, chunk in chunks if (computing := prefill.claim.computing)]
        if not feeds:
            return
        began = self.clock()
        logits = self.forward(feeds)
        rows = list(self._running)
        if rows:
            draw_all(logits, rows, self.codec, self.clock())
        self._book(self.clock() - began, chunks, rows)
        for row in rows:
            if row.error is not None:
                self._owner[row].refuse(row.error)
        self._leave()
        self._sweep(now)
        self._start()
        self.tree.enforce_budget()

    def fail(self, error: BaseException) -> None:
        """The model, or an allocation, raised: everything under way is lost, what is held stays.

        Between steps all claims are of requests under way, wherever the step broke off.
        """
        for ticket in {*self._waiting, *self._owner.values()}:
            ticket.failure, ticket.over = error, True
        for claim in list(self.admission.claims):
            self.admission.leave(claim)
        self._waiting.clear()
        self._owner.clear()
        self._claims.clear()
        self._prefills, self._running = [], []

    def compute(self, claim: Claim) -> None:
        """Compute and hold the missing part of an admitted path now."""
        if claim.computed:
            return
        self.tree.count_recomputed(claim.path, claim.pin)
        row = self.admission.compute(claim)
        while row.length < len(claim.path):
            self.forward([(row, claim.path[row.length : row.length + self.chunk], False)])
        self.admission.computed(claim)

    # -- admission -------------------------------------------------------------------------------------------------
    def _admit(self) -> None:
        """Start waiting requests in order while rows and bytes are free.

        A request whose path is being computed for another one waits for that; later ones may go ahead of it.
        """
        for first in list(islice(self._waiting, self.max_rows)):
            if self.closed:
                return
            if first.done:
                self._waiting.remove(first)
                continue
            if not first.unstarted or self._computed_for_another(first):
                continue
            under_way = len(self._owner)
            if under_way and under_way + len(first.unstarted) > self.max_rows:
                return
            if not self._open(self._alike(first, self.max_rows - under_way)):
                return

    def _computed_for_another(self, ticket: Ticket) -> bool:
        if not self._prefills:
            return False
        path, computing = ticket.path, [p.claim.path for p in self._prefills]
        held = self.tree.held(path)
        if self.asks is not None and self.asks.awaits(ticket.tiers, path[held:-1], computing):
            return True
        return any(common_length(other, path[:-1]) >= held + _WORTH_WAITING for other in computing)

    def _alike(self, first: Ticket, room: int) -> list[Ticket]:
        """`first` and the waiting requests with its path, so that it is computed for all of them at once."""
        found: list[Ticket] = []
        for ticket in self._waiting:
            same = (ticket.path, ticket.tiers) == (first.path, first.tiers)
            alike = same and not ticket.done and len(ticket.unstarted) <= room
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
        claim = self.admission.admit(first.path[:-1], longest, len(rows), least, "shifted" in first.tiers)
        if claim is None:
            if not self.admission.claims:
                first.error = self.admission.refusal(len(first.path) - 1, longest) or "no room for its KV"
            return not self.admission.claims
        started = rows[: claim.rows]
        self._take(tickets, claim)
        if claim.computed or self._shifted(first, claim):
            self._join(started, claim)
        else:
            first.count(len(claim.path) - claim.pin.end, "shifted" if claim.approximate else "")
            self.tree.count_recomputed(claim.path, claim.pin)
            self.admission.compute(claim)
            self._prefills.append(_Prefill(started, first.path, claim))
        return True

    def _shifted(self, first: Ticket, claim: Claim) -> bool:
        """Whether moved chunks served the missing part of the claim's path, which is held then."""
        if self.asks is None:
            return False
        began = self.clock()
        computed = self.asks.shift(first.tiers, claim, first.path[-1])
        if computed is None:
            return False
        first.count(computed, "shifted")
        first.prefill_s += self.clock() - began
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
                ticket.layout = _of_another_prompt(ticket, claim) if ticket is tickets[0] else 0
            self._owner.update(dict.fromkeys(taken, ticket))
            if not ticket.unstarted:
                self._waiting.remove(ticket)

    def _chunks(self) -> list[tuple[_Prefill, tuple[int, ...]]]:
        """What of the prefills is computed in this step: `chunk` tokens, half of them for the oldest if it needs them,
        the rest for the shortest first."""
        found: dict[int, int] = {}
        room = self.chunk
        if self._prefills:
            found[0] = min(self._prefills[0].missing, self.chunk // 2)
            room -= found[0]
        for i in sorted(range(len(self._prefills)), key=lambda i: self._prefills[i].missing):
            more = min(self._prefills[i].missing - found.get(i, 0), room)
            if more > 0:
                found[i] = found.get(i, 0) + more
                room -= more
        chunks = []
        for i, size in sorted(found.items()):
            prefill = self._prefills[i]
            at = len(prefill.claim.path) - prefill.missing
            chunks.append((prefill, prefill.path[at : at + size]))
        return chunks

    def _start(self) -> None:
        """Rows whose path is computed begin to decode."""
        for prefill in [p for p in self._prefills if not p.missing]:
            if not self._substituted(prefill):
                self.admission.computed(prefill.claim)
            self._prefills.remove(prefill)
            self._join(prefill.rows, prefill.claim)

    def _substituted(self, prefill: _Prefill) -> bool:
        """Whether the rows take another root's KV instead of what was just computed."""
        ticket, claim, own = self._owner[prefill.rows[0]], prefill.claim, prefill.claim.pin.end
        if self.asks is None or len(ticket.request.path) > 1:
            return False
        if not self.asks.substitute(ticket.tiers, claim, prefill.path):
            return False
        missing = len(claim.path) - own
        ticket.computed["semantic"] += missing
        for row in prefill.rows:
            self._owner[row].served["semantic"] += missing
        return True

    def _join(self, rows: list[Row], claim: Claim) -> None:
        """Rows begin to decode; rows with a common prefix are kept side by side, so that it is read once for them."""
        claim.rows = len(rows)
        approximate = sum(len(node.tokens) for node in claim.pin.path() if node.approximate)
        for row in rows:
            row.kv = self.admission.run(claim)
            if approximate:
                self._owner[row].served["shifted"] += approximate
        if self.asks is not None and len(self._owner[rows[0]].request.path) == 1:
            self.asks.note_root(rows[0].path, claim)
        self._claims.update(dict.fromkeys(rows, claim))
        self._running = sorted([*self._running, *rows], key=lambda row: row.path)

    # -- finishing -------------------------------------------------------------------------------------------------
    def _end(self, ids: set[str], now: float) -> None:
        """End the rows of these requests, and those that do not decode yet at their deadline."""
        for ticket in {*self._waiting, *self._owner.values()} if ids else ():
            if ticket.request.id in ids:
                ticket.cancel()
        self._leave(store=False)
        self._sweep(now)

    def _sweep(self, now: float) -> None:
        """Let go what need not decode any more of what waits and is prefilled."""
        for ticket in self._waiting:
            ticket.expire(now)
        self._waiting = deque(ticket for ticket in self._waiting if ticket.unstarted and not ticket.done)
        for prefill in list(self._prefills):
            for row in list(prefill.rows):
                if row.late(now):
                    row.finish = row.finish or "cancelled"
                if row.finish is not None:
                    prefill.rows.remove(row)
                    del self._owner[row]
            prefill.claim.rows = len(prefill.rows)
            if not prefill.rows:
                self.admission.leave(prefill.claim)
                self._prefills.remove(prefill)

    def _leave(self, store: bool = True) -> None:
        """Let finished rows go; their KV is stored in the tree, once, if there is room for it."""
        for row in [row for row in self._running if row.finish is not None]:
            claim = self._claims.pop(row)
            if row.kv is not None:
                self.admission.end(claim, row.kv, (*row.path, *row.tokens[:-1]) if store else None)
            row.kv = None
            del self._owner[row]
            claim.rows -= 1
            if not claim.rows:
                self.admission.leave(claim)
        self._running = [row for row in self._running if row.finish is None]

    def _book(self, seconds: float, chunks: Sequence[tuple[_Prefill, tuple[int, ...]]], rows: Sequence[Row]) -> None:
        """Share a step's seconds among its tokens, so that all shares add up to the engine's time."""
        each = seconds / max(sum(len(chunk) for _, chunk in chunks) + len(rows), 1)
        for prefill, chunk in chunks:
            self._owner[prefill.rows[0]].prefill_s += each * len(chunk)
        for row in rows:
            self._owner[row].decode_s += each


def _of_another_prompt(ticket: Ticket, claim: Claim) -> int:
    """Held tokens of the ticket's prompt that came with another prompt, which goes on differently behind them."""
    shared = claim.pin.end < len(ticket.request.path[0]) - 1 and bool(claim.pin.children)
    return claim.pin.end if shared and not claim.pin.approximate else 0
