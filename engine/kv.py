"""K and V of tokens as tensors: what segments of the tree hold and rows attend to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TensorKV:
    """K and V of n tokens, all layers: [L, H_kv, n, D]. device: where they belong; None: where they are."""

    k: Tensor
    v: Tensor
    device: torch.device | None = None

    @classmethod
    def joined(cls, parts: Sequence[TensorKV], device: torch.device) -> TensorKV:
        """Parts one behind the other: a copy, unless there is only one."""
        if len(parts) == 1:
            return parts[0]
        return cls(torch.cat([p.k for p in parts], dim=2), torch.cat([p.v for p in parts], dim=2), device)

    @property
    def tokens(self) -> int:
        return self.k.shape[2]

    @property
    def nbytes(self) -> int:
        return self.k.numel() * self.k.element_size() + self.v.numel() * self.v.element_size()

    @property
    def store(self) -> tuple[int, int]:
        k, v = self.k.untyped_storage(), self.v.untyped_storage()
        return k.data_ptr(), k.nbytes() + v.nbytes()

    def cut(self, start: int, stop: int) -> TensorKV:
        """Tokens [start, stop), sharing storage."""
        return TensorKV(self.k[:, :, start:stop], self.v[:, :, start:stop], self.device)

    def split(self, at: int) -> tuple[TensorKV, TensorKV]:
        return self.cut(0, at), self.cut(at, self.tokens)

    def copy(self) -> TensorKV:
        return TensorKV(_copy(self.k, self.k.device), _copy(self.v, self.v.device), self.device)

    def to_host(self) -> TensorKV:
        """In pinned memory where CUDA is there."""
        host = torch.device("cpu")
        return TensorKV(_copy(self.k, host), _copy(self.v, host), self.device or self.k.device)

    def to_device(self) -> TensorKV:
        device = self.device or self.k.device
        return TensorKV(_copy(self.k, device), _copy(self.v, device), self.device)


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

    def empty(self, tokens: int) -> TensorKV:
        """Room for `tokens` tokens, not initialised."""
        size = (self.layers, self.kv_heads, tokens, self.head_dim)
        k, v = (torch.empty(size, dtype=self.dtype, device=self.device) for _ in range(2))
        return TensorKV(k, v)


def _copy(tensor: Tensor, device: torch.device) -> Tensor:
    pinned = device.type == "cpu" and torch.cuda.is_available()
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device, pin_memory=pinned).copy_(tensor)
