"""CGEE level 2: an own layer loop that reads each question only up to the layer where its answer stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.attention import Batch
from engine.base import LayerExit
from engine.fused import FusedModel
from engine.labels import Labels, log_odds
from engine.packed import Feed, Forward


@dataclass(frozen=True, slots=True)
class Reading:
    """P(yes) of one question, and how many layers were run for it."""

    p_yes: float
    layers: int


@torch.inference_mode()
def read(forward: Forward, model: FusedModel, feeds: Sequence[Feed], rule: LayerExit, labels: Labels) -> list[Reading]:
    """P(yes) at the last token of every feed. Rows that end early leave the batch, the others go on without them.

    The rows are to be dropped afterwards: their tokens are not counted as kept, and layers that were not run left
    nothing for them. A row that reaches the last layer is read as a plain pass reads it, with the same bits.
    """
    test = (_Margin if rule.mode == "margin" else _Entropy)(rule, model, labels)
    under_way = _Pass(forward, model, feeds)
    found: dict[int, Reading] = {}
    for layer in range(1, len(model.layers)):
        under_way.run(layer)
        odds = test.check(layer, under_way)
        if odds is None:
            continue
        stop, values = test.stop.tolist(), torch.sigmoid(odds).tolist()
        if not any(stop):
            continue
        found.update({row: Reading(p, layer) for row, p, end in zip(under_way.rows, values, stop, strict=True) if end})
        stay = [i for i, end in enumerate(stop) if not end]
        if not stay:
            break
        under_way.keep(stay)
        test.keep(stay)
    else:
        under_way.run(len(model.layers))
        whole = zip(under_way.rows, under_way.logits(), strict=True)
        found.update({row: Reading(labels.p_yes(logits), len(model.layers)) for row, logits in whole})
    return [found[row] for row in range(len(feeds))]


def entropy(logits: Tensor) -> Tensor:
    """Entropy in nats [R] of softmax(logits [R, V])."""
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1).clamp_max(0)


class _Pass:
    """Hidden states of the rows that are still read, packed. rows: their places among the feeds."""

    def __init__(self, forward: Forward, model: FusedModel, feeds: Sequence[Feed]) -> None:
        packed = forward.pack([(row, tokens, True) for row, tokens, _ in feeds])
        self.forward, self.model = forward, model
        self.rows = list(range(len(feeds)))
        self.batch, self.ends = packed.batch, packed.wanted
        self.x, self.cos, self.sin = model.begin(packed.tokens, packed.positions)
        self.more: Tensor | None = None

    def run(self, layer: int) -> None:
        self.more = self.model.layers[layer - 1](self.x, self.more, self.cos, self.sin, self.batch)

    def final(self) -> Tensor:
        """Last tokens' states behind the final norm [R, hidden]."""
        return self.model.final(self.x, self._more, self._ends)[: len(self.ends)]

    def logits(self) -> Tensor:
        """Last tokens' logits [R, V]."""
        return self.model.logits(self.x, self._more, self._ends)[: len(self.ends)]

    def keep(self, stay: Sequence[int]) -> None:
        """Only these rows go on, in a batch of their own; `least_rows` tokens, so that their bits stay the same."""
        sizes = [self.batch.rows[i][1] for i in stay]
        tokens = [t for i, n in zip(stay, sizes, strict=True) for t in range(self.ends[i] - n + 1, self.ends[i] + 1)]
        chosen = torch.tensor(tokens + tokens[:1] * max(self.forward.least_rows - len(tokens), 0), device=self.x.device)
        self.x, self.more, self.cos, self.sin = (t[chosen] for t in (self.x, self._more, self.cos, self.sin))
        self.batch = Batch([self.batch.rows[i] for i in stay], self.forward.attention)
        self.rows = [self.rows[i] for i in stay]
        self.ends = [start + n - 1 for start, n in zip(self.batch.starts, sizes, strict=True)]

    @property
    def _more(self) -> Tensor:
        if self.more is None:
            raise RuntimeError("no layer was run yet")
        return self.more

    @property
    def _ends(self) -> Tensor:
        return torch.tensor(self.forward.padded(self.ends), device=self.x.device)


class _Test(Protocol):
    """Decides after a layer. stop [R]: rows that end here, of the last check."""

    stop: Tensor

    def check(self, layer: int, under_way: _Pass) -> Tensor | None:
        """Log-odds of yes [R] if rows may end at this layer, None if not."""
        ...

    def keep(self, stay: Sequence[int]) -> None: ...


class _Margin:
    """|log-odds| > threshold, with one sign at the last `agree` checks; reads the label rows of the unembedding."""

    def __init__(self, rule: LayerExit, model: FusedModel, labels: Labels) -> None:
        self.rule = rule
        self.first = rule.begin(len(model.layers))
        self.rows = model.unembedding([*labels.yes, *labels.no]).double()
        self.num_yes = len(labels.yes)
        self.sign: Tensor | None = None
        self.agreed = self.stop = torch.empty(0)

    def check(self, layer: int, under_way: _Pass) -> Tensor | None:
        if layer < self.first or (layer - self.first) % self.rule.every:
            return None
        # not a matrix product, whose bits would depend on how many rows are left
        logits = (under_way.final()[:, None].double() * self.rows).sum(-1)
        odds = log_odds(logits[:, : self.num_yes], logits[:, self.num_yes :])
        sign = odds.sign()
        self.agreed = torch.ones_like(odds) if self.sign is None else torch.where(sign == self.sign, self.agreed + 1, 1)
        self.sign = sign
        self.stop = (odds.abs() > self.rule.limit) & (self.agreed >= self.rule.agree)
        return odds

    def keep(self, stay: Sequence[int]) -> None:
        if self.sign is not None:
            self.sign, self.agreed = self.sign[stay], self.agreed[stay]


class _Entropy:
    """The paper's test: entropy of the full vocabulary below theta and steady; unembeds at every layer."""

    def __init__(self, rule: LayerExit, model: FusedModel, labels: Labels) -> None:
        self.rule = rule
        self.first = rule.begin(len(model.layers))
        self.labels = labels
        self.before: Tensor | None = None
        self.stop = torch.empty(0)

    def check(self, layer: int, under_way: _Pass) -> Tensor | None:
        if layer < self.first - 1:
            return None
        logits = under_way.logits().float()
        before, self.before = self.before, entropy(logits)
        if before is None or layer < self.first:
            return None
        self.stop = (self.before < self.rule.limit) & ((self.before - before).abs() < self.rule.epsilon)
        return log_odds(logits[:, list(self.labels.yes)], logits[:, list(self.labels.no)])

    def keep(self, stay: Sequence[int]) -> None:
        if self.before is not None:
            self.before = self.before[stay]
