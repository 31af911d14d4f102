"""A request under way: its rows, what they cost so far, and the result."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from engine.base import BranchRequest, BranchResult, Codec, Usage, flat
from engine.decode import Row


@dataclass(slots=True, eq=False)
class Ticket:
    """A request under way, or its result. unstarted: rows that still wait; held: path tokens whose KV was there when
    the first row started (None before). tiers: of ASKS that approximate; served, computed: tokens by such a
    tier, of all rows and those that ran through the model; layout: held tokens that came with another prompt."""

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
    tiers: frozenset[str] = frozenset()
    served: Counter[str] = field(default_factory=Counter)
    computed: Counter[str] = field(default_factory=Counter)
    layout: int = 0

    @classmethod
    def of(cls, request: BranchRequest, codec: Codec, now: float) -> Ticket:
        rows = Row.all_of(request, codec, now)
        return cls(request, flat(request.path), rows, list(rows))

    @property
    def done(self) -> bool:
        return self.over or self.error is not None or all(row.finish is not None for row in self.rows)

    def cancel(self) -> None:
        """End the rows that still run, with what they have."""
        for row in self.rows:
            row.finish = row.finish or "cancelled"
        self.unstarted = []

    def refuse(self, error: str) -> None:
        """The request cannot be served; the rows that run end."""
        self.error = self.error or error
        self.cancel()

    def expire(self, now: float) -> None:
        """End the rows that still wait if their deadline is over."""
        if self.unstarted and self.unstarted[0].late(now):
            for row in self.unstarted:
                row.finish = "cancelled"
            self.unstarted = []

    def count(self, prefilled: int, tier: str = "") -> None:
        """Tokens that ran through the model, for a path that this tier approximates if one is named."""
        self.prefilled += prefilled
        if tier:
            self.computed[tier] += prefilled

    def result(self) -> BranchResult:
        if self.error is not None:
            return BranchResult(self.request.id, error=self.error)
        branches = tuple(row.branch() for row in self.rows)
        started = len(self.rows) if self.held is not None else 0
        usage = Usage(
            generated=sum(len(branch.token_ids) for branch in branches),
            prefilled=self.prefilled,
            reused=self._reused(started * (len(self.path) - 1)),
            held=self.held or 0,
            seconds={"prefill": self.prefill_s, "decode": self.decode_s},
        )
        return BranchResult(self.request.id, branches, usage)

    def _reused(self, tokens: int) -> dict[str, int]:
        """Of the rows' `tokens` path tokens those that were not computed, each under one tier."""
        others = {tier: max(count - self.computed[tier], 0) for tier, count in self.served.items()}
        others["layout"] = self.layout
        exact = max(tokens - self.prefilled - sum(others.values()), 0)
        return {"exact": exact, **{tier: count for tier, count in others.items() if count}}
