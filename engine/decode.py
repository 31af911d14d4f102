"""Decoding: rows of several cohorts in one batch; a finished row leaves it at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from engine.attention import Cohort
from engine.base import Branch, Codec, Finish, StepRule
from engine.packed import forward
from engine.sampler import Draw, draw


@dataclass(slots=True)
class Row:
    """One sample under way: its random stream, its rules, and what it has drawn."""

    request: int
    stream: int
    rule: StepRule
    temperature: float
    top_p: float
    deadline: float | None = None
    tokens: list[int] = field(default_factory=list)
    logprob: float = 0.0
    top1: float = 0.0
    finish: Finish | None = None

    def branch(self, codec: Codec) -> Branch:
        n = max(len(self.tokens), 1)
        text = self._text(codec)
        return Branch(tuple(self.tokens), text, self.finish or "cancelled", self.logprob, self.top1 / n)

    def take(self, token: int, logprob: float, top1: float, codec: Codec, now: float) -> None:
        """Append a drawn token and see whether the row is finished."""
        self.tokens.append(token)
        self.logprob += logprob
        self.top1 += top1
        if token in codec.eos_ids:
            self.finish = "eos"
        else:
            self.finish = self.rule.finish(self._text(codec), len(self.tokens))
        if self.finish is None and self.deadline is not None and now >= self.deadline:
            self.finish = "cancelled"

    def _text(self, codec: Codec) -> str:
        ended = self.tokens and self.tokens[-1] in codec.eos_ids
        return codec.decode(self.tokens[:-1] if ended else self.tokens)


@dataclass(slots=True)
class Lane:
    """A cohort with its rows; `last` is the path token that the first step feeds."""

    cohort: Cohort
    rows: list[Row]
    last: int
    path: tuple[int, ...]

    def inputs(self) -> list[list[int]]:
        return [[row.tokens[-1] if row.tokens else self.last] for row in self.rows]


Done = Callable[[Lane, int], None]


def decode(
    model: Any,
    device: torch.device,
    codec: Codec,
    lanes: Sequence[Lane],
    done: Done,
    clock: Callable[[], float],
) -> int:
    """Run all rows to their end; `done(lane, index)` is called while a finished row's KV is still in its cohort.

    Returns the number of steps. Fed tokens of a row when it ends: the lane's last path token and all but its last own.
    """
    steps = 0
    active = [lane for lane in lanes if lane.rows]
    while active:
        logits = forward(model, device, [lane.cohort for lane in active], [lane.inputs() for lane in active])
        assert logits is not None
        rows = [row for lane in active for row in lane.rows]
        _take(rows, _draw(logits, rows), codec, clock())
        steps += 1
        for lane in active:
            _leave(lane, done)
        active = [lane for lane in active if lane.rows]
    return steps


def _draw(logits: Tensor, rows: Sequence[Row]) -> Draw:
    device = logits.device
    return draw(
        logits,
        torch.tensor([row.stream for row in rows], device=device),
        torch.tensor([len(row.tokens) for row in rows], device=device),
        torch.tensor([row.temperature for row in rows], device=device),
        torch.tensor([row.top_p for row in rows], device=device),
    )


def _take(rows: Sequence[Row], drawn: Draw, codec: Codec, now: float) -> None:
    values = zip(drawn.tokens.tolist(), drawn.logprob.tolist(), drawn.top1.tolist(), strict=True)
    for row, (token, logprob, top1) in zip(rows, values, strict=True):
        row.take(token, logprob, top1, codec, now)


def _leave(lane: Lane, done: Done) -> None:
    staying = [i for i, row in enumerate(lane.rows) if row.finish is None]
    if len(staying) == len(lane.rows):
        return
    for i, row in enumerate(lane.rows):
        if row.finish is not None:
            done(lane, i)
    lane.rows = [lane.rows[i] for i in staying]
    if staying:
        lane.cohort.keep(staying)
