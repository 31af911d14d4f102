"""Requests read from a trace file, JSON a line: `timestamp` (ms), `input_length`, `output_length`, `hash_ids`.

The format of the Mooncake traces (FAST '25): `hash_ids` name the prefix blocks of `block_tokens` tokens (512 if a row
does not say). Rows of a search (`export --format requests`) may also have `id`, `parent` (the row whose output ends
this row's input), `score`, and `segments` with `output_id`: the path as [id, tokens] of prompt and nodes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BLOCK = 512
_MAX_TOKENS = 1 << 24


class TraceError(ValueError):
    """A line that is no request."""


@dataclass(frozen=True, slots=True)
class Request:
    """One branch: when it may start, its path in segments, the tokens it draws, and the row that it waits for."""

    id: str
    at_s: float
    path: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]
    parent: str | None = None
    score: float | None = None
    named: bool = False

    @property
    def tree(self) -> str:
        """Rows with one prompt belong together; where only blocks are known, those with the first two in common."""
        return "/".join(str(segment[0]) for segment in self.path[: 1 if self.named else 2])


def read_trace(path: Path, limit: int | None = None) -> list[Request]:
    """TraceError names the line and what is wrong with it."""
    requests = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if limit is not None and len(requests) >= limit:
                break
            if line.strip():
                requests.append(_request(line, number))
    known = {request.id for request in requests}
    for request in requests:
        if request.parent is not None and request.parent not in known:
            raise TraceError(f"row {request.id!r} has the parent {request.parent!r}, which the trace does not have")
    return requests


def _request(line: str, number: int) -> Request:
    try:
        row = json.loads(line)
        length, output = _count(row, "input_length"), _count(row, "output_length")
        size = _count(row, "block_tokens") if "block_tokens" in row else _BLOCK
        named = "segments" in row
        path = _named(row["segments"]) if named else tuple(_blocks(row["hash_ids"], length, size))
        first = int(row.get("output_id", number)) % (1 << 32)
        at_s = float(row["timestamp"]) / 1000
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TraceError(f"line {number} of the trace is no request: {type(error).__name__} {error}") from None
    if sum(map(len, path)) != length or (not named and len(row["hash_ids"]) != -(-length // size)):
        raise TraceError(
            f"line {number} of the trace: {length} tokens are not {len(path)} blocks of {size}, or segments"
        )
    parent = row.get("parent")
    return Request(
        str(row.get("id", number)),
        at_s,
        path,
        (first, *(1,) * (output - 1)),
        None if parent is None else str(parent),
        row.get("score"),
        named,
    )


def _count(row: Mapping[str, Any], key: str) -> int:
    count = int(row[key])
    if not 0 < count <= _MAX_TOKENS:
        raise ValueError(f"{key} must be between 1 and {_MAX_TOKENS}, got {count}")
    return count


def _named(segments: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple((int(name) % (1 << 32), *(1,) * (min(int(tokens), _MAX_TOKENS) - 1)) for name, tokens in segments)


def _blocks(ids: Iterable[int], length: int, size: int) -> Iterator[tuple[int, ...]]:
    """A block's tokens are told apart by its id."""
    for block in ids:
        if length > 0:
            yield (int(block) % (1 << 32), *(1,) * (min(size, length) - 1))
        length -= size
