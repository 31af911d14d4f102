"""Append-only files of checked records: a magic line, then frames `length, crc(length), crc(payload), payload`.

The length has a checksum of its own, so that a file cut short (a crash while writing) is told from a damaged one: the
first is normal and its last record is dropped, the second is said.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"rksc-journal\n"
MAX_RECORD = 64 << 20
"""Most bytes of one record."""
MAX_FILE = 1 << 30
"""Most bytes of a file that is read."""
_FRAME = struct.Struct("<III")
_LENGTH = struct.Struct("<I")


class NotAJournalError(ValueError):
    """The file does not begin as a journal does."""


@dataclass(frozen=True, slots=True)
class Frames:
    """What could be read. size: bytes of the file that are whole, from its start. torn: an unfinished last record was
    left out. damage: what is wrong behind the whole part, if it is more than that."""

    payloads: tuple[bytes, ...]
    size: int
    torn: bool = False
    damage: str | None = None


def frame(payload: bytes) -> bytes:
    """A record ready to be appended; ValueError over `MAX_RECORD` bytes."""
    if len(payload) > MAX_RECORD:
        raise ValueError(f"a record of {len(payload)} bytes exceeds {MAX_RECORD}")
    length = _LENGTH.pack(len(payload))
    return _FRAME.pack(len(payload), zlib.crc32(length), zlib.crc32(payload)) + payload


def read_frames(path: Path) -> Frames:
    """Every whole record up to the first that is not. NotAJournalError for another kind of file."""
    if (size := path.stat().st_size) > MAX_FILE:
        raise NotAJournalError(f"{str(path)!r} is not a journal: its {size} bytes exceed {MAX_FILE}")
    data = path.read_bytes()
    if not data.startswith(MAGIC):
        if MAGIC.startswith(data):
            return Frames((), 0, torn=bool(data))
        raise NotAJournalError(f"{str(path)!r} is not a journal: it begins with {data[: len(MAGIC)]!r}")
    payloads: list[bytes] = []
    at = len(MAGIC)
    while at < len(data):
        payload = _next(data, at)
        if not isinstance(payload, bytes):
            return Frames(tuple(payloads), at, payload is None, payload)
        payloads.append(payload)
        at += _FRAME.size + len(payload)
    return Frames(tuple(payloads), at)


def _next(data: bytes, at: int) -> bytes | str | None:
    """The record at `at`; None if the file ends within it, else what is wrong with it."""
    if not any(data[at:]) or len(data) - at < _FRAME.size:  # zeros: space that was reserved, but never written
        return None
    length, length_crc, payload_crc = _FRAME.unpack_from(data, at)
    if zlib.crc32(data[at : at + _LENGTH.size]) != length_crc:
        return f"byte {at}: the length of a record does not match its checksum"
    if length > MAX_RECORD:
        return f"byte {at}: a record of {length} bytes exceeds {MAX_RECORD}"
    payload = data[at + _FRAME.size : at + _FRAME.size + length]
    if len(payload) < length:
        return None
    return payload if zlib.crc32(payload) == payload_crc else f"byte {at}: a record does not match its checksum"


def append_frames(path: Path, payloads: Iterable[bytes], size: int, sync: bool = True) -> int:
    """Write records at byte `size` of the file, cutting off what is there, and sync; returns the new size."""
    data = b"".join(frame(payload) for payload in payloads)
    if size == 0:
        data = MAGIC + data
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        if os.fstat(fd).st_size > size:
            os.ftruncate(fd, size)
        os.lseek(fd, size, os.SEEK_SET)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    return size + len(data)
