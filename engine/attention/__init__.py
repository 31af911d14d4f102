"""Attention over shared spans for unmodified transformers models, registered as the implementation "rksc".

The model runs on packed tokens [1, N] without a cache or mask; each attention layer hands its new K/V to a `Batch`,
which keeps it and attends. Implementations: `reference` (matrix products), `native` (own CPU kernel), `cpu` and `cuda`
(flash attention, merged by log-sum-exp).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.attention.base import Attention, Batch, Scoring
from engine.attention.flash import Flash, cpu_partial, cuda_partial
from engine.attention.native import Native
from engine.attention.reference import Reference
from engine.native import kernels

__all__ = ["CHOICES", "NAME", "Attention", "Batch", "Scoring", "attention", "choose", "register"]

NAME = "rksc"
CHOICES = ("auto", "reference", "native", "cpu", "cuda")


def choose(name: str, device: torch.device, dtype: torch.dtype) -> Attention:
    """The implementation of that name; "auto": the fastest that serves this device and dtype.

    ValueError for one that cannot serve them.
    """
    if name not in CHOICES:
        raise ValueError(f"unknown attention {name!r}; choices: {', '.join(CHOICES)}")
    own = kernels(dtype) if device.type == "cpu" and name in ("auto", "native") else None
    if own is not None:
        return Native(own)
    half = dtype in (torch.bfloat16, torch.float16)
    if device.type == "cuda" and half and name in ("auto", "cuda"):
        return Flash("cuda", cuda_partial)
    if device.type == "cpu" and name == "cpu":
        return Flash("cpu", cpu_partial)
    if name in ("auto", "reference"):
        return Reference()
    raise ValueError(f"attention {name!r} does not serve {dtype} on {device.type}; 'reference' serves everything")


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    rksc: Batch | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """transformers attention interface: query [1, H_q, N, D], key and value [1, H_kv, N, D] -> [1, N, H_q, D]."""
    if rksc is None:
        raise RuntimeError(f"attention {NAME!r} needs the model to be called with rksc=Batch(...)")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    scoring = Scoring(scale, softcap, sliding_window, s_aux)
    rows, keys, values = (t[0].transpose(0, 1) for t in (query, key, value))
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    return rksc.attend(layer, rows, keys, values, scoring)[None], None


def register() -> str:
    """Make the implementation known to transformers (idempotent); returns its name."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attention)
    return NAME
