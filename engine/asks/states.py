"""What one more token behind a row sees: the hidden states of every layer, and the logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.admission import Admission
from engine.asks.repair import embedded, fused
from engine.attention import Batch
from engine.kv import TensorKV
from engine.packed import Forward


@dataclass(frozen=True, slots=True)
class States:
    """hidden [L, hidden]: the residual stream behind each layer; logits [V]; both of one token."""

    hidden: Tensor
    logits: Tensor


@torch.inference_mode()
def look(forward: Forward, admission: Admission, spans: list[TensorKV], token: int) -> States | None:
    """States of `token` behind `spans`; its KV is dropped. None without room for it."""
    model = fused(forward)
    with admission.aside(spans, 1) as row:
        if row is None:
            return None
        batch = Batch([(row, 1)], forward.attention)
        x, cos, sin = embedded(model, forward, [token], batch)
        hidden: list[Tensor] = []
        more: Tensor | None = None
        for layer in model.layers:
            more = layer(x, more, cos, sin, batch)
            hidden.append((x + more)[0].float())
        logits: Tensor = model.head(model.norm(x, more))
        return States(torch.stack(hidden), logits[0].float())
