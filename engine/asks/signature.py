"""Signatures of roots: a few hundred bytes that are near for roots whose pooled states are near.

Pooled are values (V), a linear image of the normalised hidden states that the KV tree holds anyway, so a signature
costs no pass of the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.kv import TensorKV

NUM_BYTES = 256


def signature(spans: Sequence[TensorKV]) -> bytes:
    """`NUM_BYTES` signed bytes: V of the middle and the last layer, averaged over all tokens, projected at random."""
    total = sum(span.tokens for span in spans)
    if not total:
        return b""
    layers = sorted({spans[0].v.shape[0] // 2, spans[0].v.shape[0] - 1})
    pooled = torch.stack([span.v[layers].float().sum(2).cpu() for span in spans]).sum(0).flatten() / total
    projected = _projection(pooled.numel()) @ (pooled / pooled.norm().clamp_min(1e-12))
    scaled = projected * (127 / projected.abs().max().clamp_min(1e-12))
    return bytes(scaled.round().to(torch.int8).numpy().tobytes())


def _projection(width: int) -> Tensor:
    """[NUM_BYTES, width], the same on every engine."""
    generator = torch.Generator().manual_seed(width)
    return torch.randn(NUM_BYTES, width, generator=generator)
