"""One forward pass over packed rows: token ids of all cohorts in a row of [1, N], logits only where asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.attention import Batch, Cohort
from engine.fused import FusedModel

Feed = tuple[Cohort, Sequence[Sequence[int]], bool]
"""A cohort, the new tokens of each of its rows (equally many), and whether logits are wanted."""


@dataclass(frozen=True, slots=True)
class Forward:
    """A model with where it runs. min_rows: rows a product must have for its bits not to depend on their number."""

    model: Any
    device: torch.device
    min_rows: int

    @torch.inference_mode()
    def __call__(self, feeds: Sequence[Feed]) -> Tensor:
        """Append K/V of all tokens to their cohorts; logits [R, V] at the last token of each row that wants them."""
        flat: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        for cohort, rows, logits in feeds:
            for length, row in zip(cohort.lengths, rows, strict=True):
                flat.extend(row)
                positions.extend(range(length, length + len(row)))
                if logits:
                    wanted.append(len(flat) - 1)
        padding = [0] * max(self.min_rows - len(flat), 0)
        batch = Batch([(cohort, len(rows[0])) for cohort, rows, _ in feeds])
        tokens = torch.tensor(flat + padding, device=self.device)
        places = torch.tensor(positions + padding, device=self.device)
        padded = wanted + [0] * max(self.min_rows - len(wanted), 0) if wanted else []
        run = self.model if isinstance(self.model, FusedModel) else self._stock
        out: Tensor = run(tokens, places, batch, padded)
        batch.advance()
        return out[: len(wanted)]

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
