"""A batch of chosen positions of one row, whose other tokens' KV is taken as it is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.attention import Attention, Batch, Scoring
from engine.attention.base import Job, Write
from engine.attention.native import Native
from engine.attention.reference import Reference
from engine.row_kv import RowKV


class Spots(Batch):
    """positions: rising, all of them own tokens of the row, whose buffers have room for them.

    Each token attends to all positions up to its own, whatever is in the buffers there. watched: a layer at which
    `deviations` is set before anything is overwritten.
    """

    def __init__(self, row: RowKV, positions: Sequence[int], attention: Attention, watched: int | None = None) -> None:
        n = len(positions)
        self.attention = any_positions(attention)
        self.rows = [(row, n)]
        self.tokens = n
        self.starts = [0]
        self.positions = torch.tensor(positions, dtype=torch.int64)
        self.jobs = _jobs(row, positions)
        self.writes = _writes(row, positions)
        self.plan: object = None
        self.watched = watched
        self.deviations: Tensor | None = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        if layer == self.watched:
            self.deviations = self._deviations(layer, key, value)
        return super().attend(layer, query, key, value, scoring)

    def _deviations(self, layer: int, key: Tensor, value: Tensor) -> Tensor:
        """[N]: squared distance of new and present K and V, each in units of the mean square of the new one."""
        total = key.new_zeros(self.tokens, dtype=torch.float32)
        for new, old in ((key, [w.buffer.k for w in self.writes]), (value, [w.buffer.v for w in self.writes])):
            new = new[: self.tokens].float()
            spans = zip(old, self.writes, strict=True)
            present = torch.cat([t[layer][:, w.at : w.at + w.last - w.first].transpose(0, 1) for t, w in spans]).float()
            total += (new - present).square().sum((1, 2)) / new.square().sum((1, 2)).mean().clamp_min(1e-12)
        return total


def any_positions(attention: Attention) -> Attention:
    """Implementations that take positions as they come; flash attention wants them to follow each other."""
    return attention if isinstance(attention, Native | Reference) else Reference()


def _jobs(row: RowKV, positions: Sequence[int]) -> list[Job]:
    """A job a span for the tokens at or behind its first position."""
    last = positions[-1]
    found: list[Job] = []
    at = 0
    for span in [*row.spans, *row.pieces(row.start, last + 1)]:
        first = next(i for i, position in enumerate(positions) if position >= at)
        crossing = positions[first] < at + span.tokens - 1
        found.append(Job(span, at, first, len(positions), crossing))
        at += span.tokens
    return found


def _writes(row: RowKV, positions: Sequence[int]) -> list[Write]:
    """One write for each run of neighbouring positions in one buffer."""
    found: list[Write] = []
    places = ((buffer, column) for buffer in row.own for column in range(buffer.tokens))
    by_position = dict(enumerate(places, row.start))
    for i, position in enumerate(positions):
        buffer, column = by_position[position]
        previous = found[-1] if found else None
        if previous and previous.buffer is buffer and previous.at + previous.last - previous.first == column:
            found[-1] = Write(buffer, previous.at, previous.first, i + 1)
        else:
            found.append(Write(buffer, column, i, i + 1))
    return found
