"""A request under way: its rows, what they cost so far, and the result."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.base import BranchRequest, BranchResult, Codec, Usage, flat
from engine.decode import Row


@dataclass(slots=True, eq=False)
class Ticket:
    """A request under way, or its result. unstarted: rows that still wait; held: path tokens whose KV was there when
    the first row started (None before)."""

    request: BranchRequest
    path: tuple[int, ...]
    rows: list[Row]
    unstarted: list[Row] = field(default_factory=list)
    held: int | None = None
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
        path = flat(request.path)
        rows = [Row(path, stream, *settings) for stream in request.streams]
        return cls(request, path, rows, list(rows))

    @property
    def done(self) -> bool:
        return self.over or self.error is not None or all(row.finish is not None for row in self.rows)

    def cancel(self) -> None:
        """End the rows that still run, with what they have."""
        for row in self.rows:
            row.finish = row.finish or "cancelled"
        self.unstarted = []

    def result(self, codec: Codec) -> BranchResult:
        if self.error is not None:
            return BranchResult(self.request.id, error=self.error)
        branches = tuple(row.branch(codec) for row in self.rows)
        started = len(self.rows) if self.held is not None else 0
        usage = Usage(
            generated=sum(len(branch.token_ids) for branch in branches),
            prefilled=self.prefilled,
            reused={"exact": max(started * (len(self.path) - 1) - self.prefilled, 0)},
            held=self.held or 0,
            seconds={"prefill": self.prefill_s, "decode": self.decode_s},
        )
        return BranchResult(self.request.id, branches, usage)
