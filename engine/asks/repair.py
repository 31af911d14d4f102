"""Selective recomputation: chosen tokens run through the layers, the others keep the KV that was copied for them.

HKVD (high KV deviation) selection as in CacheBlend (Yao et al., EuroSys 2025): the first layers are computed for all
tokens, and those whose K and V at the watched layer deviate most from the copied ones are computed in all layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.asks.spots import Spots
from engine.fused import FusedModel
from engine.packed import Forward
from engine.row_kv import RowKV

_WATCHED = 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is computed of a row's own tokens, by index: `always`, and of `copied` the share `ratio` of all of them
    that deviates most, those in `always` included."""

    copied: frozenset[int]
    always: frozenset[int]
    ratio: float

    def chosen(self, at: Sequence[int], deviations: Tensor) -> list[int]:
        """Places in `at` of the tokens that go on through all layers, rising."""
        forced = {place for place, index in enumerate(at) if index in self.always or index not in self.copied}
        share = math.ceil(self.ratio * sum(index in self.copied for index in at))
        more = share - sum(at[place] in self.copied for place in forced)
        order = torch.argsort(deviations, descending=True, stable=True).tolist()
        free = [place for place in order if place not in forced]
        return sorted({*forced, *free[: max(more, 0)]})


@torch.inference_mode()
def repair(forward: Forward, row: RowKV, tokens: Sequence[int], wanted: Wanted, block: int = 512) -> int:
    """Compute the wanted ones of `tokens`, the row's own, `block` at a time; copied KV is in place already.

    Afterwards the row is filled. Returns how many tokens ran through all layers.
    """
    model = fused(forward)
    full = 0
    for start in range(0, len(tokens), block):
        at = list(range(start, min(start + block, len(tokens))))
        full += _block(model, forward, row, [(index, tokens[index]) for index in at], wanted)
    row.filled = len(tokens)
    return full


def _block(model: FusedModel, forward: Forward, row: RowKV, part: list[tuple[int, int]], wanted: Wanted) -> int:
    at = [index for index, _ in part]
    spots = Spots(row, [row.start + index for index in at], forward.attention, _WATCHED)
    x, cos, sin = embedded(model, forward, [token for _, token in part], spots)
    more: Tensor | None = None
    for i, layer in enumerate(model.layers):
        more = layer(x, more, cos, sin, spots)
        if i == _WATCHED and spots.deviations is not None:
            kept = wanted.chosen(at, spots.deviations)
            if not kept:
                return 0
            if len(kept) < len(at):
                at = [at[place] for place in kept]
                spots = Spots(row, [row.start + index for index in at], forward.attention)
                rows = kept + kept[-1:] * max(forward.least_rows - len(kept), 0)
                x, more, cos, sin = (t[rows] for t in (x, more, cos, sin))
    return len(at)


def embedded(model: FusedModel, forward: Forward, tokens: Sequence[int], spots: Any) -> tuple[Tensor, Tensor, Tensor]:
    """(x [N, hidden], cos, sin [N, D]) of a batch's tokens, padded to the rows that products need."""
    padding = max(forward.least_rows - len(tokens), 0)
    ids = torch.tensor([*tokens, *[0] * padding], device=forward.device)
    positions = torch.cat([spots.positions, spots.positions.new_zeros(padding)]).to(forward.device)
    x: Tensor = model.embed(ids)
    cos, sin = (part[0].contiguous() for part in model.rotary(x[None], positions[None]))
    return x, cos, sin


def fused(forward: Forward) -> FusedModel:
    """The engine's own layers; RuntimeError for a model that does not run on them."""
    if not isinstance(forward.model, FusedModel):
        raise RuntimeError(f"{type(forward.model).__name__} does not run on the engine's own layers")
    return forward.model
