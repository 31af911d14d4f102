"""KV of a path as bytes, for another engine with the same model: msgpack, no pickle.

`{version, fingerprint, dtype, shape [L, H_kv, n, D], tokens (4 little-endian bytes each), ends, k, v}`.
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

VERSION = 1
_FIELDS = {
    "version": int,
    "fingerprint": str,
    "dtype": str,
    "shape": list,
    "tokens": bytes,
    "ends": list,
    "k": bytes,
    "v": bytes,
}


@dataclass(frozen=True, slots=True)
class Parcel:
    """A path's tokens, where its segments end, and its KV in host memory: [L, H_kv, n, D]."""

    tokens: tuple[int, ...]
    ends: tuple[int, ...]
    kv: TensorKV


def pack(tree: KVTree, shape: KVShape, end: Segment) -> bytes:
    """The whole path to `end`, whether it is on the device or on the host."""
    path = end.path()
    parts = [segment.payload for segment in path]
    held = [part for part in parts if isinstance(part, TensorKV)]
    k, v = (torch.cat([t.to("cpu") for t in side], dim=2) for side in ([p.k for p in held], [p.v for p in held]))
    fields = {
        "version": VERSION,
        "fingerprint": tree.fingerprint,
        "dtype": _name(shape.dtype),
        "shape": list(k.shape),
        "tokens": token_bytes([token for segment in path for token in segment.tokens]),
        "ends": [segment.end for segment in path],
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
    count = len(fields["tokens"]) // 4
    size = [shape.layers, shape.kv_heads, count, shape.head_dim]
    _demand("shape", fields["shape"], size)
    ends = fields["ends"]
    rising = all(isinstance(end, int) for end in ends) and ends == sorted(set(ends)) and ends[-1:] == [count]
    if not rising or ends[0] <= 0 or len(fields["tokens"]) % 4:
        raise ValueError(f"not exported KV: segment ends do not fit {count} tokens")
    nbytes = count * shape.bytes_per_token // 2
    if len(fields["k"]) != nbytes or len(fields["v"]) != nbytes:
        raise ValueError(f"not exported KV: {len(fields['k'])} bytes of keys for {count} tokens, {nbytes} expected")
    k, v = (_tensor(fields[name], shape.dtype, size) for name in "kv")
    tokens = struct.unpack(f"<{count}I", fields["tokens"])
    return Parcel(tokens, tuple(ends), TensorKV(k, v, shape.device))


def store(tree: KVTree, shape: KVShape, parcel: Parcel) -> int:
    """Hold what fits of a parcel (its path whole, or what was held before); tokens of it now held."""

    def cut(start: int, stop: int) -> TensorKV:
        return parcel.kv.split(stop)[0].split(start)[1]

    if tree.store(parcel.tokens, cut, shape.bytes_per_token) is not None:
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
    return bytes(tensor.contiguous().view(torch.uint8).numpy().tobytes())


def _tensor(data: bytes, dtype: torch.dtype, size: Sequence[int]) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).view(list(size))
