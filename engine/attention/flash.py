"""Flash attention a span at a time, merged by log-sum-exp in float32 (the merge of FlashAttention's split keys)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

import torch
from torch import Tensor

from engine.attention.base import Batch, Job, Scoring
from engine.attention.reference import Reference

Partial = Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor], float, bool], tuple[Tensor, Tensor]]
"""For each i: queries [T_i, H_q, D] attend to keys and values [H_kv, n_i, D]; scale, causal -> outputs and
log-sum-exps of all queries, [sum T_i, H_q, D] and [sum T_i, H_q].

causal: the last query of a piece sees all its keys, each earlier one a key less; all see at least one.
"""


@dataclass(frozen=True, slots=True)
class Piece:
    """Queries [first, last) see the first n keys of a job's span, causally or all of them."""

    first: int
    last: int
    n: int
    causal: bool
    job: Job


class Flash:
    """The reference serves windows, softcap and sinks."""

    def __init__(self, name: str, partial: Partial) -> None:
        self.name = name
        self._partial = partial
        self._other = Reference()

    def attend(self, batch: Batch, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        if scoring.softcap is not None or scoring.sinks is not None or scoring.window is not None:
            return self._other.attend(batch, layer, query, key, value, scoring)
        if batch.plan is None:
            batch.plan = [(wave, _tokens(wave, query.device)) for wave in _waves(batch)]
        batch.write(layer, key, value)
        out = torch.zeros(query.shape, dtype=torch.float32, device=query.device)
        total = torch.full(query.shape[:2], float("-inf"), device=query.device)
        for wave, tokens in cast(list[tuple[list[Piece], Tensor]], batch.plan):
            queries = [query[piece.first : piece.last] for piece in wave]
            keys = [piece.job.span.k[layer][:, : piece.n] for piece in wave]
            values = [piece.job.span.v[layer][:, : piece.n] for piece in wave]
            part, lse = self._partial(queries, keys, values, scoring.scale, wave[0].causal)
            merged = torch.logaddexp(total[tokens], lse)
            old, new = (torch.exp(t - merged)[..., None] for t in (total[tokens], lse))
            out[tokens] = out[tokens] * old + part.float() * new
            total[tokens] = merged
        return out.to(query.dtype)


def _waves(batch: Batch) -> list[list[Piece]]:
    """Pieces that are computed together: a span of several rows alone, spans of single rows side by side.

    The latter are short and many; no query is twice in a wave.
    """
    shared: list[list[Piece]] = []
    single: list[list[Piece]] = []
    starts = set(batch.starts)
    for piece in _pieces(batch):
        if len(starts & set(range(piece.first, piece.last))) > 1:
            shared.append([piece])
            continue
        free = (w for w in single if w[0].causal == piece.causal and all(_apart(piece, other) for other in w))
        wave = next(free, None)
        if wave is None:
            single.append([piece])
        else:
            wave.append(piece)
    return shared + single


def _apart(a: Piece, b: Piece) -> bool:
    return a.last <= b.first or b.last <= a.first


def _tokens(wave: Sequence[Piece], device: torch.device) -> Tensor:
    return torch.cat([torch.arange(piece.first, piece.last, device=device) for piece in wave])


def _pieces(batch: Batch) -> Iterator[Piece]:
    positions = batch.positions.tolist()
    for job in batch.jobs:
        n = job.span.tokens
        if not job.crossing:
            yield Piece(job.first, job.last, n, False, job)
            continue
        # a crossing job is of one row: its positions follow each other
        first = next(t for t in range(job.first, job.last) if positions[t] >= job.start)
        whole = next((t for t in range(first, job.last) if positions[t] >= job.start + n - 1), job.last)
        if first < whole:
            yield Piece(first, whole, positions[whole - 1] - job.start + 1, True, job)
        if whole < job.last:
            yield Piece(whole, job.last, n, False, job)


def cpu_partial(
    queries: Sequence[Tensor], keys: Sequence[Tensor], values: Sequence[Tensor], scale: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """aten's flash attention for CPUs, a piece at a time."""
    parts = [_cpu(*piece, scale, causal) for piece in zip(queries, keys, values, strict=True)]
    return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts])


def _cpu(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """The query heads of a KV head are folded into the query length."""
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


def cuda_partial(
    queries: Sequence[Tensor], keys: Sequence[Tensor], values: Sequence[Tensor], scale: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """torch's variable-length flash attention with its log-sum-exp, all pieces in one call.

    Without a mask the query heads of a KV head are folded into the query length.
    """
    from torch.nn.attention.varlen import AuxRequest, varlen_attn

    heads, dim = queries[0].shape[1:]
    kv_heads = keys[0].shape[0]
    group = heads // kv_heads
    query = torch.cat(list(queries)) if len(queries) > 1 else queries[0]
    tokens = len(query)
    if not causal:
        query = query.view(tokens, kv_heads, group, dim).transpose(1, 2).reshape(-1, kv_heads, dim)
    lengths = [len(q) * (1 if causal else group) for q in queries]
    seen = [k.shape[1] for k in keys]
    packed = [
        torch.cat([t.transpose(0, 1) for t in side]) if len(side) > 1 else side[0].transpose(0, 1)
        for side in (keys, values)
    ]
    out, lse = varlen_attn(
        query,
        packed[0],
        packed[1],
        _ends(lengths, query.device),
        _ends(seen, query.device),
        max(lengths),
        max(seen),
        return_aux=AuxRequest(lse=True),
        scale=scale,
        window_size=(-1, 0) if causal else (-1, -1),
        enable_gqa=causal,
    )
    lse = lse.transpose(0, 1)
    if not causal:
        out = out.view(tokens, group, kv_heads, dim).transpose(1, 2).reshape(tokens, heads, dim)
        lse = lse.reshape(tokens, group, kv_heads).transpose(1, 2).reshape(tokens, heads)
    return out, lse


def _ends(lengths: Sequence[int], device: torch.device) -> Tensor:
    """Cumulative lengths from 0, as int32."""
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
