"""The definition in plain matrix products: all scores of a query side by side, one softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.attention.base import Batch, Scoring


class Reference:
    """Any device, any dtype, any `Scoring`; softmax in float32."""

    name = "reference"

    def attend(self, batch: Batch, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        batch.write(layer, key, value)
        n, kv_heads, dim = batch.tokens, key.shape[1], query.shape[2]
        # [H_kv, N, G, D]: the G query heads of a KV head are rows of one product
        folded = query[:n].view(n, kv_heads, -1, dim).transpose(0, 1)
        group = folded.shape[2]
        total = int(batch.positions.max()) + 1
        scores = query.new_full((kv_heads, n, group, total), float("-inf"))
        for job in batch.jobs:
            rows = folded[:, job.first : job.last].reshape(kv_heads, -1, dim)
            part = rows @ job.span.k[layer].transpose(1, 2)
            end = job.start + job.span.tokens
            scores[:, job.first : job.last, :, job.start : end] = part.view(kv_heads, -1, group, job.span.tokens)
        weights = _weights(scores, batch.positions.to(query.device), scoring)
        out = query.new_zeros(kv_heads, n, group, dim)
        for job in batch.jobs:
            end = job.start + job.span.tokens
            part = weights[:, job.first : job.last, :, job.start : end].reshape(kv_heads, -1, job.span.tokens)
            out[:, job.first : job.last] += (part @ job.span.v[layer]).view(kv_heads, -1, group, dim)
        result = torch.zeros_like(query)
        result[:n] = out.transpose(0, 1).reshape(n, -1, dim)
        return result


def _weights(scores: Tensor, positions: Tensor, scoring: Scoring) -> Tensor:
    """scores [H_kv, N, G, T], -inf where a token has no key -> weights of the same shape."""
    scores = scores * scoring.scale
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    keys = torch.arange(scores.shape[-1], device=scores.device)
    hidden = keys > positions[:, None]
    if scoring.window is not None:
        hidden |= keys <= positions[:, None] - scoring.window
    scores = scores.masked_fill(hidden[:, None], float("-inf"))
    if scoring.sinks is None:
        return torch.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)
    kv_heads, n, group, _ = scores.shape
    sinks = scoring.sinks.to(scores.dtype).view(kv_heads, 1, group, 1).expand(-1, n, -1, -1)
    weights = torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1, dtype=torch.float32)
    return weights[..., :-1].to(scores.dtype)
