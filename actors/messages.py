"""Wire format of KV events: msgpack arrays `[version, actor, incarnation, seq, t, ops]`, keys in columns.

ops, each at most once: `["="]` everything before is void (a snapshot begins), `["+", keys, parents, ends]` held,
`["-", keys]` dropped, `["s", keys, signatures]` what held prompts are like, `["#", count, xor]` digest of all that is
held once the batch is applied, `["m", used, limit, token]` memory, `["!", keys]` proposals that were refused.
keys and parents are 16 bytes each in one string, ends four little-endian bytes each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import msgpack
import numpy as np

VERSION = 3
MAX_BYTES = 64 << 20
MAX_ENTRIES = 1 << 20
MAX_SIGNATURE = 512
MAX_NAME = 256
KEY_BYTES = 16

Ack = Literal["ok", "resync", "stale", "bad"]


class BadMessageError(ValueError):
    """Arguments or bytes that are not what an entry point of the index takes."""


@dataclass(frozen=True, slots=True)
class Digest:
    """Of a set of keys: how many, and the exclusive or of all (0 for none)."""

    count: int = 0
    xor: int = 0

    def plus(self, keys: Collection[bytes]) -> Digest:
        """With these keys, none of which was in the set."""
        return Digest(self.count + len(keys), self.xor ^ xor_of(keys))

    def minus(self, keys: Collection[bytes]) -> Digest:
        """Without these keys, all of which were in the set."""
        return Digest(self.count - len(keys), self.xor ^ xor_of(keys))


def xor_of(keys: Collection[bytes]) -> int:
    """Keys are hashes themselves, so their exclusive or tells sets apart whatever the order."""
    words = np.frombuffer(b"".join(keys), np.uint64).reshape(-1, KEY_BYTES // 8)
    return int.from_bytes(np.bitwise_xor.reduce(words).tobytes())


@dataclass(frozen=True, slots=True)
class Memory:
    """KV on an engine's device: bytes used, most bytes allowed, bytes a token."""

    used_bytes: int
    limit_bytes: int
    token_bytes: int


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Changes of one engine's KV. seq counts batches of one incarnation from 0; a snapshot replaces all before it.

    added: keys, with their parents' keys and ends (tokens); signed: (key, signature) of held prompts. A key is not
    added and dropped in one batch. digest: of what is held behind this batch; None where more is to follow.
    """

    actor: str
    incarnation: int
    seq: int
    t_s: float
    added: tuple[bytes, ...] = ()
    parents: tuple[bytes, ...] = ()
    ends: tuple[int, ...] = ()
    dropped: tuple[bytes, ...] = ()
    signed: tuple[tuple[bytes, bytes], ...] = ()
    snapshot: bool = False
    digest: Digest | None = None
    memory: Memory | None = None
    refused: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """ "resync": send a snapshot; "stale": a later incarnation was heard; "bad": not understood.

    evict: keys that the engine might drop, the ones below first; it decides by its own books.
    """

    ack: Ack
    evict: tuple[bytes, ...] = ()


def pack(batch: EventBatch) -> bytes:
    """ValueError for keys that do not have 16 bytes."""
    ops: list[list[object]] = [["="]] if batch.snapshot else []
    if batch.added:
        ops.append(["+", _joined(batch.added), _joined(batch.parents), np.array(batch.ends, "<u4").tobytes()])
    if batch.dropped:
        ops.append(["-", _joined(batch.dropped)])
    if batch.signed:
        ops.append(["s", _joined([key for key, _ in batch.signed]), [signature for _, signature in batch.signed]])
    if batch.digest is not None:
        ops.append(["#", batch.digest.count, batch.digest.xor.to_bytes(KEY_BYTES)])
    if batch.memory is not None:
        ops.append(["m", batch.memory.used_bytes, batch.memory.limit_bytes, batch.memory.token_bytes])
    if batch.refused:
        ops.append(["!", _joined(batch.refused)])
    fields = [VERSION, batch.actor, batch.incarnation, batch.seq, batch.t_s, ops]
    data: bytes = msgpack.packb(fields, use_bin_type=True)
    return data


def unpack(data: bytes) -> EventBatch:
    """Parse with size bounds; anything unexpected is a BadMessageError."""
    if not isinstance(data, bytes) or len(data) > MAX_BYTES:
        raise BadMessageError(f"not bytes, or more than {MAX_BYTES} of them")
    try:
        fields = msgpack.unpackb(data, raw=False, strict_map_key=True, max_array_len=MAX_ENTRIES)
    except (ValueError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise BadMessageError(f"not msgpack: {error}") from None
    if not isinstance(fields, list) or len(fields) != 6:
        raise BadMessageError("not an array of 6 fields")
    version, actor, incarnation, seq, t_s, ops = fields
    if version != VERSION or isinstance(version, bool):
        raise BadMessageError(f"version {version!r}, this side speaks {VERSION}")
    if not isinstance(t_s, int | float) or not isinstance(ops, list):
        raise BadMessageError("a field has the wrong type")
    return _batch(name_of(actor), _count(incarnation), _count(seq), float(t_s), _by_tag(ops))


def name_of(value: object) -> str:
    """A name of an engine, a driver or a tree."""
    if not isinstance(value, str) or len(value) > MAX_NAME:
        raise BadMessageError(f"not a name of at most {MAX_NAME} characters: {str(value)[:80]}")
    return value


def tree_name(problem_id: str) -> str:
    """What the index knows a problem's tree by: its id, or a digest of an id that is too long for a name."""
    if len(problem_id) <= MAX_NAME:
        return problem_id
    return blake2b(problem_id.encode(errors="surrogatepass"), digest_size=KEY_BYTES).hexdigest()


def keys_of(value: object) -> tuple[bytes, ...]:
    """Prefix keys given one by one."""
    if not isinstance(value, list | tuple) or len(value) > MAX_ENTRIES:
        raise BadMessageError("not a list of keys")
    if any(not isinstance(key, bytes) or len(key) != KEY_BYTES for key in value):
        raise BadMessageError(f"a key that does not have {KEY_BYTES} bytes")
    return tuple(value)


def _batch(actor: str, incarnation: int, seq: int, t_s: float, ops: Mapping[str, Sequence[Any]]) -> EventBatch:
    added, parents, ends = ops.get("+", (b"", b"", b""))
    keys, above = _split(added), _split(parents)
    signed, signatures = ops.get("s", (b"", ()))
    return EventBatch(
        actor,
        incarnation,
        seq,
        t_s,
        added=keys,
        parents=above,
        ends=_unpacked_ends(ends, len(keys), len(above)),
        dropped=_split(*ops.get("-", (b"",))),
        signed=_signed(_split(signed), signatures),
        snapshot="=" in ops,
        digest=_digest(*ops["#"]) if "#" in ops else None,
        memory=Memory(*map(_count, ops["m"])) if "m" in ops else None,
        refused=_split(*ops.get("!", (b"",))),
    )


_ARGUMENTS = {"=": 0, "+": 3, "-": 1, "s": 2, "#": 2, "m": 3, "!": 1}


def _by_tag(ops: Sequence[object]) -> dict[str, Sequence[Any]]:
    found: dict[str, Sequence[Any]] = {}
    for op in ops:
        known = isinstance(op, list) and op and isinstance(op[0], str) and op[0] in _ARGUMENTS
        if not known or not isinstance(op, list) or len(op) != 1 + _ARGUMENTS[op[0]] or op[0] in found:
            raise BadMessageError(f"unknown or repeated operation {str(op)[:80]}")
        found[op[0]] = op[1:]
    return found


def _split(column: object) -> tuple[bytes, ...]:
    if not isinstance(column, bytes) or len(column) % KEY_BYTES or len(column) > MAX_ENTRIES * KEY_BYTES:
        raise BadMessageError(f"a column of keys is bytes, {KEY_BYTES} a key, of at most {MAX_ENTRIES} keys")
    keys: list[bytes] = np.frombuffer(column, f"V{KEY_BYTES}").tolist()
    return tuple(keys)


def _unpacked_ends(column: object, keys: int, parents: int) -> tuple[int, ...]:
    if not isinstance(column, bytes) or len(column) != 4 * keys or parents != keys:
        raise BadMessageError("columns of keys, parents and ends of different lengths")
    ends: list[int] = np.frombuffer(column, "<u4").tolist()
    if ends and not min(ends):
        raise BadMessageError("a segment that ends at 0")
    return tuple(ends)


def _signed(keys: Sequence[bytes], signatures: object) -> tuple[tuple[bytes, bytes], ...]:
    if not isinstance(signatures, list | tuple) or len(signatures) != len(keys):
        raise BadMessageError("keys and signatures of different lengths")
    if any(not isinstance(found, bytes) or len(found) > MAX_SIGNATURE for found in signatures):
        raise BadMessageError(f"a signature that is not bytes, or more than {MAX_SIGNATURE} of them")
    return tuple(zip(keys, signatures, strict=True))


def _digest(count: object, xor: object) -> Digest:
    if not isinstance(xor, bytes) or len(xor) != KEY_BYTES:
        raise BadMessageError(f"a digest has a count and {KEY_BYTES} bytes")
    return Digest(_count(count), int.from_bytes(xor))


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadMessageError(f"not a count: {str(value)[:80]}")
    return value


def _joined(keys: Sequence[bytes]) -> bytes:
    column = b"".join(keys)
    if len(column) != KEY_BYTES * len(keys) or any(len(key) != KEY_BYTES for key in keys):
        raise ValueError(f"keys of {KEY_BYTES} bytes are expected")
    return column
