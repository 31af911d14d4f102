"""One forward pass over packed rows: token ids of all cohorts in a row of [1, N], logits only where asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.attention import Batch, Cohort

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
            cohort.reserve(len(rows[0]))
            for row in rows:
                flat.extend(row)
                positions.extend(range(cohort.length, cohort.length + len(row)))
                if logits:
                    wanted.append(len(flat) - 1)
        padding = [0] * max(self.min_rows - len(flat), 0)
        batch = Batch([(cohort, len(rows[0])) for cohort, rows, _ in feeds])
        inputs: dict[str, Any] = {
            "input_ids": torch.tensor([flat + padding], device=self.device),
            "position_ids": torch.tensor([positions + padding], device=self.device),
            "use_cache": False,
            "rksc": batch,
        }
        out = self._logits(inputs, wanted) if wanted else self._hidden(inputs)
        batch.advance()
        return out

    def _logits(self, inputs: dict[str, Any], wanted: list[int]) -> Tensor:
        padded = wanted + [0] * max(self.min_rows - len(wanted), 0)
        logits: Tensor = self.model(logits_to_keep=torch.tensor(padded, device=self.device), **inputs).logits
        return logits[0, : len(wanted)]

    def _hidden(self, inputs: dict[str, Any]) -> Tensor:
        """Only K/V are wanted: the unembedding is not run."""
        self.model.base_model(**inputs)
        return torch.empty(0, device=self.device)
