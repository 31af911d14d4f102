"""Flash attention a span at a time, merged by log-sum-exp in float32 (the merge of FlashAttention's split keys)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from engine.attention.base import Batch, Job, Scoring
from engine.attention.reference import Reference

Partial = Callable[[Tensor, Tensor, Tensor, float, bool], tuple[Tensor, Tensor]]
"""query [T, H_q, D], key and value [H_kv, n, D], scale, causal -> out [T, H_q, D], log-sum-exp [T, H_q].

causal: the last query sees all n keys, each earlier one a key less; all see at least one.
"""


class Flash:
    """The reference serves windows, softcap and sinks."""

    def __init__(self, name: str, partial: Partial) -> None:
        self.name = name
        self._partial = partial
        self._other = Reference()

    def attend(self, batch: Batch, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        if scoring.softcap is not None or scoring.sinks is not None or scoring.window is not None:
            return self._other.attend(batch, layer, query, key, value, scoring)
        batch.write(layer, key, value)
        out = torch.zeros(query.shape, dtype=torch.float32, device=query.device)
        total = torch.full(query.shape[:2], float("-inf"), device=query.device)
        for first, last, n, causal, job in _pieces(batch):
            k, v = job.span.k[layer][:, :n], job.span.v[layer][:, :n]
            part, lse = self._partial(query[first:last], k, v, scoring.scale, causal)
            merged = torch.logaddexp(total[first:last], lse)
            old, new = (torch.exp(t - merged)[..., None] for t in (total[first:last], lse))
            out[first:last] = out[first:last] * old + part.float() * new
            total[first:last] = merged
        return out.to(query.dtype)


def _pieces(batch: Batch) -> Iterator[tuple[int, int, int, bool, Job]]:
    """(first, last, n, causal, job): queries [first, last) see the first n keys of a job's span, as `Partial` says."""
    positions = batch.positions.tolist()
    for job in batch.jobs:
        n = job.span.tokens
        if not job.crossing:
            yield job.first, job.last, n, False, job
            continue
        # a crossing job is of one row: its positions follow each other
        first = next(t for t in range(job.first, job.last) if positions[t] >= job.start)
        whole = next((t for t in range(first, job.last) if positions[t] >= job.start + n - 1), job.last)
        if first < whole:
            yield first, whole, positions[whole - 1] - job.start + 1, True, job
        if whole < job.last:
            yield whole, job.last, n, False, job


def cpu_partial(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """aten's flash attention for CPUs; the query heads of a KV head are folded into the query length."""
    tokens, heads, dim = query.shape
    kv_heads, n, _ = key.shape
    folded = query.view(tokens, kv_heads, -1, dim).transpose(0, 1).reshape(1, kv_heads, -1, dim)
    group = heads // kv_heads
    mask = None
    if causal:
        hidden = torch.arange(n) > torch.arange(n - tokens, n)[:, None]
        mask = torch.zeros(tokens, n, dtype=query.dtype).masked_fill(hidden, float("-inf")).repeat_interleave(group, 0)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        folded, key[None], value[None], 0.0, False, attn_mask=mask, scale=scale
    )
    unfolded = out[0].view(kv_heads, tokens, group, dim).transpose(0, 1).reshape(tokens, heads, dim)
    return unfolded, lse[0].view(kv_heads, tokens, group).transpose(0, 1).reshape(tokens, heads)


def cuda_partial(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """torch's variable-length flash attention with its log-sum-exp; without a mask, query heads are folded."""
    from torch.nn.attention.varlen import AuxRequest, varlen_attn

    tokens, heads, dim = query.shape
    kv_heads, n, _ = key.shape
    if not causal:
        query = query.view(tokens, kv_heads, -1, dim).transpose(1, 2).reshape(-1, kv_heads, dim)
    ends = [torch.tensor([0, t], dtype=torch.int32, device=query.device) for t in (len(query), n)]
    out, lse = varlen_attn(
        query,
        key.transpose(0, 1),
        value.transpose(0, 1),
        ends[0],
        ends[1],
        len(query),
        n,
        return_aux=AuxRequest(lse=True),
        scale=scale,
        window_size=(-1, 0) if causal else (-1, -1),
        enable_gqa=causal,
    )
    lse = lse.transpose(0, 1)
    if not causal:
        group = heads // kv_heads
        out = out.view(tokens, group, kv_heads, dim).transpose(1, 2).reshape(tokens, heads, dim)
        lse = lse.reshape(tokens, group, kv_heads).transpose(1, 2).reshape(tokens, heads)
    return out, lse
