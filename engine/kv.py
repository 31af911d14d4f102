"""KV tensors of tree segments, and cohorts built from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention import BLOCK, Cohort
from engine.kv_tree import KVTree, Match, Segment

ADOPTED = 8
"""A buffer becomes a segment's own memory, without a copy, if it wastes less than 1 / ADOPTED of its bytes."""


@dataclass(frozen=True, slots=True)
class TensorKV:
    """K and V of a segment's n tokens, all layers: [L, H_kv, n, D]. device: where they belong; None: where they are."""

    k: Tensor
    v: Tensor
    device: torch.device | None = None

    @property
    def nbytes(self) -> int:
        return self.k.numel() * self.k.element_size() + self.v.numel() * self.v.element_size()

    @property
    def store(self) -> tuple[int, int]:
        k, v = self.k.untyped_storage(), self.v.untyped_storage()
        return k.data_ptr(), k.nbytes() + v.nbytes()

    def split(self, at: int) -> tuple[TensorKV, TensorKV]:
        return (
            TensorKV(self.k[:, :, :at], self.v[:, :, :at], self.device),
            TensorKV(self.k[:, :, at:], self.v[:, :, at:], self.device),
        )

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

    def empty(self, tokens: int) -> Tensor:
        """[L, H_kv, tokens, D] zeros."""
        return torch.zeros(self.layers, self.kv_heads, tokens, self.head_dim, dtype=self.dtype, device=self.device)

    def rows(self, rows: int, tokens: int) -> Tensor:
        """[L, rows, H_kv, tokens, D] zeros."""
        size = (self.layers, rows, self.kv_heads, tokens, self.head_dim)
        return torch.zeros(size, dtype=self.dtype, device=self.device)


def cohort(tree: KVTree, shape: KVShape, tokens: Sequence[int], rows: int, room: int = 0) -> Cohort:
    """`rows` rows behind the held prefix of `tokens`: whole blocks shared (a view where one buffer holds them), the
    rest copied to each row. The cohort's length tells how much was held.

    room: path tokens for which the rows' own buffers are made large enough at once.
    """
    match = tree.match(tokens)
    pieces = _pieces(match)
    shared = match.length // BLOCK * BLOCK
    columns = blocks(max(match.length, room) - shared)
    private = []
    for parts in ([p.k for p in pieces], [p.v for p in pieces]):
        own = shape.rows(rows, columns)
        at = 0
        for part in parts:
            stop = at + part.shape[2]
            if stop > shared:
                begin = max(at, shared)
                own[:, :, :, begin - shared : stop - shared] = part[:, None, :, begin - at :]
            at = stop
        private.append(own)
    k, v = (_joined(parts, shared, shape) for parts in ([p.k for p in pieces], [p.v for p in pieces]))
    return Cohort(k, v, private[0], private[1], [match.length - shared] * rows)


def row_payload(group: Cohort, row: int, start: int, stop: int) -> TensorKV:
    """A row's K/V at positions [start, stop), all of them private: a view of the cohort's buffers."""
    at = group.shared_k.shape[2]
    columns = slice(start - at, stop - at)
    return TensorKV(group.private_k[:, row, :, columns], group.private_v[:, row, :, columns])


def blocks(tokens: int) -> int:
    """Columns of a buffer for `tokens` tokens: whole blocks, one at least."""
    return max(-(-tokens // BLOCK), 1) * BLOCK


def adoptable(tokens: int, columns: int) -> bool:
    """Whether a buffer of one row may become the memory of a segment with `tokens` of its tokens."""
    return (columns - tokens) * ADOPTED <= columns


def buffer_bytes(tree: KVTree, cohorts: Iterable[Cohort]) -> int:
    """Bytes of the cohorts' buffers that are not the tree's own memory."""
    buffers = {}
    for group in cohorts:
        for tensors in ((group.private_k, group.private_v), (group.shared_k, group.shared_v)):
            if not tree.device.owns(tensors[0].untyped_storage().data_ptr()):
                buffers.update({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors})
    return sum(buffers.values())


def leading(path: Sequence[Segment]) -> int:
    """Tokens at the front of a held path that lie in one buffer, so that they are shared without a copy.

    What is on the host gets a buffer of its own when it is restored.
    """
    if path and path[0].state == "host":
        return len(path[0].tokens)
    held = [segment.payload for segment in path if segment.state == "device"]
    return sum(part.shape[2] for part in _adjacent([p.k for p in held if isinstance(p, TensorKV)]))


def _pieces(match: Match) -> list[TensorKV]:
    """The held prefix, in order."""
    payloads = [segment.payload for segment in match.segments]
    if match.partial is not None:
        payloads.append(match.partial.payload.split(match.length - match.partial.start)[0])
    return [payload for payload in payloads if isinstance(payload, TensorKV)]


def _joined(parts: Sequence[Tensor], tokens: int, shape: KVShape) -> Tensor:
    """The first `tokens` tokens of the parts as one tensor: a view if one buffer holds them, else a copy."""
    if not tokens:
        return shape.empty(0)
    together = _adjacent(parts)
    if sum(part.shape[2] for part in together) >= tokens:
        first = together[0]
        size = (first.shape[0], first.shape[1], tokens, first.shape[3])
        return first.as_strided(size, first.stride())
    whole, at = shape.empty(tokens), 0
    for part in parts:
        n = min(part.shape[2], tokens - at)
        whole[:, :, at : at + n] = part[:, :, :n]
        at += n
    return whole


def _adjacent(parts: Sequence[Tensor]) -> list[Tensor]:
    """The leading parts that follow each other in one buffer."""
    found: list[Tensor] = []
    for part in parts:
        if found:
            last = found[-1]
            follows = last.storage_offset() + last.shape[2] * last.stride(2)
            same = last.untyped_storage().data_ptr() == part.untyped_storage().data_ptr()
            if not same or part.stride() != last.stride() or part.storage_offset() != follows:
                break
        found.append(part)
    return found


def _copy(tensor: Tensor, device: torch.device) -> Tensor:
    pinned = device.type == "cpu" and torch.cuda.is_available()
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device, pin_memory=pinned).copy_(tensor)
