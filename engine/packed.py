"""One forward pass over packed rows: token ids of all cohorts in a row of [1, N], logits only where asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engine.attention import MIN_ROWS, Batch, Cohort


@torch.inference_mode()
def forward(
    model: Any,
    device: torch.device,
    cohorts: Sequence[Cohort],
    tokens: Sequence[Sequence[Sequence[int]]],
    logits: bool = True,
) -> Tensor | None:
    """Feed tokens[c][row] (all rows of a cohort equally many) and append their K/V to the cohorts.

    Returns logits [R, V] at the last token of each row, rows in order of cohorts; None if not asked for.
    """
    flat: list[int] = []
    positions: list[int] = []
    ends: list[int] = []
    for cohort, rows in zip(cohorts, tokens, strict=True):
        for row in rows:
            flat.extend(row)
            positions.extend(range(cohort.length, cohort.length + len(row)))
            ends.append(len(flat) - 1)
    for cohort, rows in zip(cohorts, tokens, strict=True):
        cohort.reserve(len(rows[0]))
    padding = [0] * max(MIN_ROWS - len(flat), 0)
    batch = Batch([(cohort, len(rows[0])) for cohort, rows in zip(cohorts, tokens, strict=True)])
    inputs: dict[str, Any] = {
        "input_ids": torch.tensor([flat + padding], device=device),
        "position_ids": torch.tensor([positions + padding], device=device),
        "use_cache": False,
        "rksc": batch,
    }
    if not logits:
        model.base_model(**inputs)
        batch.advance()
        return None
    wanted = ends + [0] * max(MIN_ROWS - len(ends), 0)
    result: Tensor = model(logits_to_keep=torch.tensor(wanted, device=device), **inputs).logits
    batch.advance()
    return result[0, : len(ends)]
