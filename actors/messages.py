"""Wire format of KV events: msgpack arrays `[version, actor, incarnation, seq, t, ops]`.

ops: `["+", key, parent, end]` held, `["-", key]` dropped, `["s", key, signature]` what the held prompt is like,
`["="]` everything before is void (opens a snapshot).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgpack

from engine.base import KVEvent

VERSION = 2
MAX_BYTES = 64 << 20
MAX_OPS = 1 << 20
MAX_SIGNATURE = 512


class BadMessageError(ValueError):
    """Bytes that are not a well-formed event batch."""


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Changes of one engine's KV. seq counts batches of one incarnation from 0; a snapshot replaces all before it."""

    actor: str
    incarnation: int
    seq: int
    t_s: float
    events: tuple[KVEvent, ...]
    snapshot: bool = False


def pack(batch: EventBatch) -> bytes:
    ops: list[list[object]] = [["="]] if batch.snapshot else []
    ops += [_op(event) for event in batch.events]
    fields = [VERSION, batch.actor, batch.incarnation, batch.seq, batch.t_s, ops]
    data: bytes = msgpack.packb(fields, use_bin_type=True)
    return data


def unpack(data: bytes) -> EventBatch:
    """Parse with size bounds; anything unexpected is a BadMessageError."""
    if len(data) > MAX_BYTES:
        raise BadMessageError(f"message of {len(data)} bytes exceeds {MAX_BYTES}")
    try:
        fields = msgpack.unpackb(data, raw=False, strict_map_key=True, max_array_len=MAX_OPS)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise BadMessageError(f"not msgpack: {error}") from None
    if not isinstance(fields, list) or len(fields) != 6:
        raise BadMessageError("not an array of 6 fields")
    version, actor, incarnation, seq, t_s, ops = fields
    if version != VERSION:
        raise BadMessageError(f"version {version!r}, this side speaks {VERSION}")
    typed = _is(actor, str) and _is(incarnation, int) and _is(seq, int) and isinstance(t_s, int | float)
    if not typed or not isinstance(ops, list) or seq < 0:
        raise BadMessageError("a field has the wrong type")
    snapshot = bool(ops) and ops[0] == ["="]
    return EventBatch(actor, incarnation, seq, float(t_s), _events(ops[1:] if snapshot else ops), snapshot)


def _op(event: KVEvent) -> list[object]:
    if event.op == "add":
        return ["+", event.key, event.parent, event.end]
    return ["s", event.key, event.signature] if event.op == "sign" else ["-", event.key]


def _events(ops: Sequence[object]) -> tuple[KVEvent, ...]:
    events = []
    for op in ops:
        match op:
            case ["+", bytes(key), bytes(parent), int(end)] if _is(end, int) and end > 0:
                events.append(KVEvent("add", key, parent, end))
            case ["s", bytes(key), bytes(signature)] if len(signature) <= MAX_SIGNATURE:
                events.append(KVEvent("sign", key, signature=signature))
            case ["-", bytes(key)]:
                events.append(KVEvent("drop", key))
            case _:
                raise BadMessageError(f"unknown operation {str(op)[:80]}")
    return tuple(events)


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
