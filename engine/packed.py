"""One forward pass over packed rows: token ids of all rows in a row of [1, N], logits only where asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.attention import Attention, Batch
from engine.fused import FusedModel
from engine.row_kv import RowKV

Feed = tuple[RowKV, Sequence[int], bool]
"""A row, its new tokens, and whether logits are wanted at the last of them."""


@dataclass(frozen=True, slots=True)
class Packed:
    """tokens, positions [N], padding last; wanted: packed positions whose logits are asked for."""

    tokens: Tensor
    positions: Tensor
    batch: Batch
    wanted: list[int]


@dataclass(slots=True, eq=False)
class Forward:
    """A model with where it runs. least_rows: rows a product must have for its bits not to depend on their number.

    steps: batches packed so far, one for each run.
    """

    model: Any
    device: torch.device
    least_rows: int
    attention: Attention
    steps: int = 0

    @torch.inference_mode()
    def __call__(self, feeds: Sequence[Feed]) -> Tensor:
        """Append K/V of all tokens to their rows; logits [R, V] of the rows that want them, in the order of feeds."""
        packed = self.pack(feeds)
        run = self.model if isinstance(self.model, FusedModel) else self._stock
        out: Tensor = run(packed.tokens, packed.positions, packed.batch, self.padded(packed.wanted))
        packed.batch.advance()
        return out[: len(packed.wanted)]

    def pack(self, feeds: Sequence[Feed]) -> Packed:
        """Tokens of all rows side by side, at least `least_rows` of them."""
        self.steps += 1
        flat: list[int] = []
        wanted: list[int] = []
        for _, tokens, logits in feeds:
            flat.extend(tokens)
            if logits:
                wanted.append(len(flat) - 1)
        batch = Batch([(row, len(tokens)) for row, tokens, _ in feeds], self.attention)
        padding = max(self.least_rows - len(flat), 0)
        ids = torch.tensor(flat + [0] * padding, device=self.device)
        positions = torch.cat([batch.positions, batch.positions.new_zeros(padding)]).to(self.device)
        return Packed(ids, positions, batch, wanted)

    def padded(self, rows: list[int]) -> list[int]:
        """At least `least_rows` packed positions, unless there are none: these, then the first one of the batch."""
        return rows + [0] * max(self.least_rows - len(rows), 0) if rows else []

    def _stock(self, tokens: Tensor, positions: Tensor, batch: Batch, wanted: list[int]) -> Tensor:
        """A transformers model; without wanted logits its unembedding is not run."""
        inputs: dict[str, Any] = {
            "input_ids": tokens[None],
            "position_ids": positions[None],
            "use_cache": False,
            "rksc": batch,
        }
        if not wanted:
            self.model.base_model(**inputs)
            return torch.empty(0, device=self.device)
        logits: Tensor = self.model(logits_to_keep=torch.tensor(wanted, device=self.device), **inputs).logits[0]
        return logits
