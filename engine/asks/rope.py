"""Rotary positions: which models' keys can be moved to another position, and how."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engine.fused import FAMILIES, FusedLayer, FusedModel

SERVED = ("default", "linear", "llama3", "yarn")
"""RoPE types whose frequencies do not depend on the length of the sequence."""

_REASONS = {
    "dynamic": "dynamic NTK changes its frequencies with the length of the sequence",
    "longrope": "longrope changes its frequencies with the length of the sequence",
}


def unsupported(model: Any) -> str | None:
    """Why KV of this model cannot be moved to another position, or None."""
    config = model.config.get_text_config()
    if (positions := _other_positions(config)) is not None:
        return positions
    for kind in _kinds(config):
        if kind not in SERVED:
            why = _REASONS.get(kind, f"RoPE type {kind!r} is not known")
            return f"{why}; served: {', '.join(SERVED)}"
    if not isinstance(model, FusedModel):
        return f"{type(model).__name__} does not run on the engine's own layers, which serve {', '.join(FAMILIES)}"
    layers = [layer for layer in model.layers if isinstance(layer, FusedLayer)]
    if 2 * model.rotary.inv_freq.shape[0] != layers[0].heads[2]:
        return "partial rotary: only some dimensions of a head are rotated"
    if any(layer.scoring.window is not None for layer in layers):
        return "sliding window attention"
    return None


def changing(config: Any) -> str | None:
    """Why a token's key depends on how long the sequence it stands in becomes, or None. config: of the text model."""
    return next((_REASONS[kind] for kind in _kinds(config) if kind in _REASONS), None)


def rotated(keys: Tensor, by: int, inv_freq: Tensor) -> Tensor:
    """keys [..., D], rotated halves, as they are `by` positions later: R(by) k in float32, in the keys' dtype.

    cos and sin are those of the frequencies alone: a scaling of attention (YaRN) is already in the keys, once.
    """
    if not by:
        return keys
    angles = by * inv_freq.to(device=keys.device, dtype=torch.float64)
    cos, sin = (torch.cat([part, part]).float() for part in (angles.cos(), angles.sin()))
    k = keys.float()
    first, second = k.chunk(2, dim=-1)
    return (k * cos + torch.cat([-second, first], dim=-1) * sin).to(keys.dtype)


def _kinds(config: Any) -> list[str]:
    """RoPE types of the model, or of its kinds of layers where they differ."""
    rope = getattr(config, "rope_parameters", None) or {}
    parts = [part for part in rope.values() if isinstance(part, dict)] or [rope]
    return [part.get("rope_type", "default") for part in parts]


def _other_positions(config: Any) -> str | None:
    if getattr(config, "alibi", False) or config.model_type in ("bloom", "mpt"):
        return "ALiBi: positions are biases of the scores, keys carry none"
    if getattr(config, "rope_parameters", None) is None and getattr(config, "rope_theta", None) is None:
        return "learned positions (or none): keys are not rotated"
    return None
