"""Who attends to what in one forward pass, worked out once for all layers, and what an implementation must do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.kv import TensorKV
from engine.row_kv import RowKV


@dataclass(frozen=True, slots=True)
class Scoring:
    """How scores become weights: softmax over `cap(scale * q k)`, cap(x) = softcap * tanh(x / softcap).

    window: a query sees its last `window` positions only (None: all). sinks [H_q]: one more logit a head that takes
    weight and gives no value.
    """

    scale: float
    softcap: float | None = None
    window: int | None = None
    sinks: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """Tokens [first, last) of the batch attend to one span, which lies at positions [start, start + span.tokens).

    crossing: some of the span's keys come after some of these queries.
    """

    span: TensorKV
    start: int
    first: int
    last: int
    crossing: bool


@dataclass(frozen=True, slots=True)
class Write:
    """Keys and values of tokens [first, last) are kept at `at` in a buffer."""

    buffer: TensorKV
    at: int
    first: int
    last: int


class Attention(Protocol):
    """One way of computing it. A span is read once a layer for all rows that share it."""

    @property
    def name(self) -> str: ...

    def attend(self, batch: Batch, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """Keep key and value, then attend. query [N, H_q, D]; key, value [N, H_kv, D] -> [N, H_q, D].

        Tokens behind the batch's last one are padding; what is returned for them is finite and means nothing.
        """
        ...


class Batch:
    """Rows with their new tokens, packed row by row. Rows that share spans have to be neighbours to be read together.

    positions [N]: int64. jobs: a token's jobs come in the order of their positions and cover all it may see.
    """

    def __init__(self, rows: Sequence[tuple[RowKV, int]], attention: Attention) -> None:
        for row, q in rows:
            row.reserve(q)
        self.attention = attention
        self.rows = rows
        self.tokens = sum(q for _, q in rows)
        self.starts = _starts(rows)
        self.positions = torch.cat([torch.arange(row.length, row.length + q) for row, q in rows])
        cursors = [
            _Cursor(row.seen(q), first, q, row.length) for (row, q), first in zip(rows, self.starts, strict=True)
        ]
        self.jobs = sorted(_jobs(cursors, 0), key=lambda job: (job.start, job.first))
        self.writes = [w for (row, q), first in zip(rows, self.starts, strict=True) for w in _writes(row, q, first)]
        self.plan: object = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        return self.attention.attend(self, layer, query, key, value, scoring)

    def advance(self) -> None:
        """Count the tokens that the layers have just kept."""
        for row, q in self.rows:
            row.filled += q

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Keep key, value [N, H_kv, D]."""
        for w in self.writes:
            columns = slice(w.at, w.at + w.last - w.first)
            w.buffer.k[layer][:, columns] = key[w.first : w.last].transpose(0, 1)
            w.buffer.v[layer][:, columns] = value[w.first : w.last].transpose(0, 1)


@dataclass(slots=True)
class _Cursor:
    """What a row still has to attend to."""

    spans: list[TensorKV]
    first: int
    q: int
    length: int
    at: int = 0
    used: int = 0

    @property
    def rest(self) -> TensorKV | None:
        if self.at == len(self.spans):
            return None
        span = self.spans[self.at]
        return span.cut(self.used, span.tokens) if self.used else span

    def advance(self, tokens: int) -> None:
        self.used += tokens
        if self.used == self.spans[self.at].tokens:
            self.at, self.used = self.at + 1, 0


def _jobs(cursors: Sequence[_Cursor], start: int) -> list[Job]:
    """Neighbours whose next span begins in the same memory read it together, as far as they have it in common."""
    found: list[Job] = []
    i = 0
    while i < len(cursors):
        span = cursors[i].rest
        if span is None:
            i += 1
            continue
        place, n, j = span.k.data_ptr(), span.tokens, i + 1
        while j < len(cursors) and (other := cursors[j].rest) is not None and other.k.data_ptr() == place:
            n = min(n, other.tokens)
            j += 1
        group = cursors[i:j]
        for cursor in group:
            cursor.advance(n)
        crossing = any(cursor.q > 1 and start + n - 1 > cursor.length for cursor in group)
        found.append(Job(span.cut(0, n), start, group[0].first, group[-1].first + group[-1].q, crossing))
        found += _jobs(group, start + n)
        i = j
    return found


def _starts(rows: Sequence[tuple[RowKV, int]]) -> list[int]:
    found, at = [], 0
    for _, q in rows:
        found.append(at)
        at += q
    return found


def _writes(row: RowKV, q: int, first: int) -> list[Write]:
    found: list[Write] = []
    at = 0
    for buffer in row.own:
        begin = max(row.filled - at, 0)
        n = min(row.filled + q - at, buffer.tokens) - begin
        if n > 0:
            found.append(Write(buffer, begin, first, first + n))
            first += n
        at += buffer.tokens
    return found
