"""KV tensors of tree segments, and cohorts built from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention import BLOCK, Cohort
from engine.kv_tree import KVTree, Match


@dataclass(frozen=True, slots=True)
class TensorKV:
    """K and V of a segment's n tokens, all layers: [L, H_kv, n, D]."""

    k: Tensor
    v: Tensor

    @property
    def nbytes(self) -> int:
        return self.k.numel() * self.k.element_size() + self.v.numel() * self.v.element_size()

    def split(self, at: int) -> tuple[TensorKV, TensorKV]:
        return (
            TensorKV(self.k[:, :, :at], self.v[:, :, :at]),
            TensorKV(self.k[:, :, at:], self.v[:, :, at:]),
        )


@dataclass(frozen=True, slots=True)
class KVShape:
    """Layout of a model's KV: layers, KV heads, head dimension, dtype, device."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize

    def empty(self, tokens: int) -> Tensor:
        """[L, H_kv, tokens, D] zeros."""
        return torch.zeros(self.layers, self.kv_heads, tokens, self.head_dim, dtype=self.dtype, device=self.device)


def cohort(tree: KVTree, shape: KVShape, tokens: Sequence[int], rows: int) -> Cohort:
    """`rows` rows behind the held prefix of `tokens`: whole blocks shared (a view where one segment holds them), the
    rest copied to each row. The cohort's length tells how much was held."""
    match = tree.match(tokens)
    shared = match.length // BLOCK * BLOCK
    k, v = _gather(match, shape)
    filled = match.length - shared
    columns = max(-(-filled // BLOCK), 1) * BLOCK
    private = []
    for held in (k, v):
        own = shape.empty(columns)[:, None].repeat(1, rows, 1, 1, 1)
        own[:, :, :, :filled] = held[:, None, :, shared:]
        private.append(own)
    return Cohort(k[:, :, :shared], v[:, :, :shared], private[0], private[1], filled)


def row_payload(group: Cohort, row: int, start: int, stop: int) -> TensorKV:
    """Copy of a row's K/V at positions [start, stop), all of them private."""
    at = group.shared_k.shape[2]
    columns = slice(start - at, stop - at)
    return TensorKV(group.private_k[:, row, :, columns].clone(), group.private_v[:, row, :, columns].clone())


def _gather(match: Match, shape: KVShape) -> tuple[Tensor, Tensor]:
    payloads = [s.payload for s in match.segments]
    if match.partial is not None:
        payloads.append(match.partial.payload.split(match.length - match.partial.start)[0])
    held = [p for p in payloads if isinstance(p, TensorKV)]
    if not held:
        return shape.empty(0), shape.empty(0)
    if len(held) == 1:
        return held[0].k, held[0].v
    return torch.cat([p.k for p in held], dim=2), torch.cat([p.v for p in held], dim=2)
