"""KV of a path for another engine with the same model: as tensors, or as bytes (msgpack, no pickle).

`{version, fingerprint, dtype, shape [L, H_kv, n, D], tokens (4 little-endian bytes each), start, ends, k, v}`; k and v
are those of the tokens from `start` on.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import torch
from torch import Tensor

from engine.base import token_bytes
from engine.kv import KVShape, TensorKV
from engine.kv_tree import KVTree, Segment

VERSION = 2
_FIELDS = {
    "version": int,
    "fingerprint": str,
    "dtype": str,
    "shape": list,
    "tokens": bytes,
    "start": int,
    "ends": list,
    "k": bytes,
    "v": bytes,
}


@dataclass(frozen=True, slots=True)
class Parcel:
    """A path's tokens, where its segments end, and the KV of its tokens from `start` on: [L, H_kv, n, D]."""

    fingerprint: str
    tokens: tuple[int, ...]
    ends: tuple[int, ...]
    start: int
    kv: TensorKV


def take(tree: KVTree, end: Segment, start: int = 0) -> Parcel:
    """The path to `end`, whether it is on the device or on the host; a copy, on the device where all of it is there."""
    path = end.path()
    parts = [
        segment.payload.cut(max(start - segment.start, 0), len(segment.tokens))
        for segment in path
        if isinstance(segment.payload, TensorKV) and segment.end > start
    ]
    if not parts:
        raise ValueError(f"nothing of a path of {end.end} tokens lies behind its first {start}")
    device = torch.device("cpu") if len({part.k.device for part in parts}) > 1 else parts[0].k.device
    k, v = (torch.cat([t.to(device) for t in side], dim=2) for side in ([p.k for p in parts], [p.v for p in parts]))
    tokens = tuple(token for segment in path for token in segment.tokens)
    return Parcel(tree.fingerprint, tokens, tuple(segment.end for segment in path), start, TensorKV(k, v))


def pack(parcel: Parcel) -> bytes:
    k, v = parcel.kv.k, parcel.kv.v
    fields = {
        "version": VERSION,
        "fingerprint": parcel.fingerprint,
        "dtype": _name(k.dtype),
        "shape": list(k.shape),
        "tokens": token_bytes(parcel.tokens),
        "start": parcel.start,
        "ends": list(parcel.ends),
        "k": _bytes(k),
        "v": _bytes(v),
    }
    data: bytes = msgpack.packb(fields, use_bin_type=True)
    return data


def unpack(data: bytes, fingerprint: str, shape: KVShape) -> Parcel:
    """ValueError, naming both sides, for anything this engine cannot continue from."""
    fields = _fields(data)
    _demand("model", fields["fingerprint"], fingerprint)
    _demand("dtype", fields["dtype"], _name(shape.dtype))
    count, start = len(fields["tokens"]) // 4, fields["start"]
    if len(fields["tokens"]) % 4 or not 0 <= start < count:
        raise ValueError(f"not exported KV: it starts at {start} of {len(fields['tokens'])} bytes of tokens")
    size = [shape.layers, shape.kv_heads, count - start, shape.head_dim]
    _demand("shape", fields["shape"], size)
    nbytes = (count - start) * shape.bytes_per_token // 2
    if len(fields["k"]) != nbytes or len(fields["v"]) != nbytes:
        raise ValueError(f"not exported KV: {len(fields['k'])} bytes of keys for {count} tokens, {nbytes} expected")
    k, v = (_tensor(fields[name], shape.dtype, size) for name in "kv")
    tokens = struct.unpack(f"<{count}I", fields["tokens"])
    parcel = Parcel(fingerprint, tokens, tuple(fields["ends"]), start, TensorKV(k, v))
    check(parcel, fingerprint, shape)
    return parcel


def check(parcel: Parcel, fingerprint: str, shape: KVShape) -> None:
    """ValueError for a parcel that this engine cannot continue from."""
    _demand("model", parcel.fingerprint, fingerprint)
    count, start, ends = len(parcel.tokens), parcel.start, list(parcel.ends)
    size = [shape.layers, shape.kv_heads, count - start, shape.head_dim]
    for side in (parcel.kv.k, parcel.kv.v):
        _demand("dtype", _name(side.dtype), _name(shape.dtype))
        _demand("shape", list(side.shape), size)
    rising = all(isinstance(end, int) for end in ends) and ends == sorted(set(ends)) and ends[-1:] == [count]
    if not rising or ends[0] <= 0:
        raise ValueError(f"not exported KV: segment ends do not fit {count} tokens")


def store(tree: KVTree, shape: KVShape, parcel: Parcel) -> int:
    """Hold what fits of a parcel (its path whole, or what was held before); tokens of it now held.

    A parcel whose first tokens are not held here any more cannot be joined on.
    """
    kv = TensorKV(parcel.kv.k, parcel.kv.v, shape.device)

    def cut(start: int, stop: int) -> TensorKV:
        return kv.cut(start - parcel.start, stop - parcel.start)

    joined = tree.held(parcel.tokens) >= parcel.start
    if joined and tree.store(parcel.tokens, cut, shape.bytes_per_token) is not None:
        for end in parcel.ends:
            tree.reach(parcel.tokens[:end])
    tree.enforce_budget()
    return tree.match(parcel.tokens).length


def _fields(data: bytes) -> dict[str, Any]:
    try:
        fields = msgpack.unpackb(data, raw=False, strict_map_key=True)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise ValueError(f"not exported KV: {error}") from None
    if not isinstance(fields, dict) or set(fields) != set(_FIELDS):
        raise ValueError(f"not exported KV: the fields are not {', '.join(_FIELDS)}")
    for name, kind in _FIELDS.items():
        if not isinstance(fields[name], kind):
            raise ValueError(f"not exported KV: {name} is a {type(fields[name]).__name__}")
    _demand("format version", fields["version"], VERSION)
    return fields


def _demand(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise ValueError(f"exported KV has {what} {found!r}, this engine {expected!r}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.to("cpu").contiguous().view(torch.uint8).numpy().tobytes())


def _tensor(data: bytes, dtype: torch.dtype, size: Sequence[int]) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).view(list(size))
