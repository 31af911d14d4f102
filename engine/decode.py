"""Rows that decode: what each has drawn, when it is finished, and drawing for all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.base import Branch, BranchRequest, Codec, Finish, RuleError, StepRule, flat, stop_ids
from engine.confidence import TOP, Groups, token_confidence
from engine.row_kv import RowKV
from engine.sampler import draw
from engine.step_text import StepText


@dataclass(slots=True, eq=False)
class Row:
    """One sample under way: its random stream, its rules, and what it has drawn. kv: while it decodes.
    groups: watches its confidence, where that may end it. error: what its rule raised, which ended it.
    stops: tokens that end it and are not in its text."""

    path: tuple[int, ...]
    stream: int
    rule: StepRule
    temperature: float
    top_p: float
    text: StepText
    deadline: float | None = None
    tokens: list[int] = field(default_factory=list)
    logprob: float = 0.0
    top1: float = 0.0
    finish: Finish | None = None
    error: str | None = None
    stops: frozenset[int] = frozenset()
    kv: RowKV | None = None
    groups: Groups | None = None

    @classmethod
    def all_of(cls, request: BranchRequest, codec: Codec, now: float) -> list[Row]:
        """A row a stream. The prompt's text is no part of what a row says; that of the steps behind it goes on."""
        path, until = flat(request.path), None if request.deadline_s is None else now + request.deadline_s
        settings, before = (request.rule, request.temperature, request.top_p), flat(request.path[1:])
        stops = stop_ids(codec, request.rule.stop)
        return [
            cls(path, key, *settings, StepText(codec, before), until, stops=stops, groups=Groups.of(request.prune))
            for key in request.streams
        ]

    @property
    def newest(self) -> int:
        """The token to feed next; the first step feeds the path's last token."""
        return self.tokens[-1] if self.tokens else self.path[-1]

    def branch(self) -> Branch:
        n = max(len(self.tokens), 1)
        lowest = self.groups.lowest if self.groups else None
        finish = self.finish or "cancelled"
        text = self.text.read(ended=finish in ("eos", "stop"))
        return Branch(tuple(self.tokens), text, finish, self.logprob, self.top1 / n, lowest)

    def take(
        self, token: int, logprob: float, top1: float, codec: Codec, now: float, confidence: float | None = None
    ) -> None:
        """Append a drawn token and see whether the row is finished. confidence: of the token, for watched rows."""
        self.tokens.append(token)
        self.logprob += logprob
        self.top1 += top1
        if token in codec.eos_ids:
            self.finish = "eos"
        elif token in self.stops:
            self.finish = "stop"
        else:
            self.text.add(token)
            try:
                self.finish = self.rule.finish(self.text.read(), len(self.tokens))
            except RuleError as error:
                self.finish, self.error = "error", str(error)
        unsure = self.groups is not None and confidence is not None and self.groups.add(confidence)
        if self.finish is None and unsure:
            self.finish = "pruned"
        if self.finish is None and self.late(now):
            self.finish = "cancelled"

    def late(self, now: float) -> bool:
        """Whether its deadline, which it shares with all rows of its request, is over."""
        return self.deadline is not None and now >= self.deadline


def draw_all(logits: Tensor, rows: Sequence[Row], codec: Codec, now: float) -> None:
    """One token for each row from logits [R, V]."""
    device = logits.device
    drawn = draw(
        logits,
        torch.tensor([row.stream for row in rows], device=device),
        torch.tensor([len(row.tokens) for row in rows], device=device),
        torch.tensor([row.temperature for row in rows], device=device),
        torch.tensor([row.top_p for row in rows], device=device),
    )
    values = zip(drawn.tokens.tolist(), drawn.logprob.tolist(), drawn.top1.tolist(), drawn.logprobs, strict=True)
    for row, (token, logprob, top1, logprobs) in zip(rows, values, strict=True):
        confidence = None
        if row.groups is not None:
            confidence = token_confidence(logprobs.topk(min(TOP, len(logprobs))).values.tolist())
        row.take(token, logprob, top1, codec, now, confidence)
