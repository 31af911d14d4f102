"""Readers of input files, row by row: JSONL, gzipped JSONL, CSV, Parquet. A row that cannot be read says why."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.batch.places import InputFile
from orchestrator.config import UsageError
from orchestrator.problems import parsed

MAX_ROW_BYTES = 16 << 20
"""Most bytes of one row of text."""
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Cells:
    """One row as it stands in a file. number: from 1, lines or rows. table: every row has the same columns."""

    number: int
    values: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    table: bool = False


@dataclass(frozen=True, slots=True)
class Format:
    """read: rows of a file. count: about how many there are, without reading them."""

    read: Callable[[InputFile], Iterator[Cells]]
    count: Callable[[InputFile], int]


def _jsonl(source: InputFile) -> Iterator[Cells]:
    number = 0
    with source.unpacked() as file:
        while line := file.readline(MAX_ROW_BYTES + 1):
            number += 1
            too_long = len(line) > MAX_ROW_BYTES
            while len(line) > MAX_ROW_BYTES and not line.endswith(b"\n"):
                line = file.readline(MAX_ROW_BYTES + 1)
            if too_long:
                yield Cells(number, error=f"the row has more than {MAX_ROW_BYTES} bytes")
            elif line := (line.removeprefix(_BOM) if number == 1 else line).strip():
                yield _json_row(number, line)


def _json_row(number: int, line: bytes) -> Cells:
    try:
        row = parsed(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Cells(number, error=f"the row is not UTF-8 text (byte {error.start})")
    except ValueError as error:
        return Cells(number, error=f"the row is not JSON: {error}")
    if not isinstance(row, dict):
        return Cells(number, error=f"the row is no JSON object but a {type(row).__name__}")
    return Cells(number, row)


def _csv(source: InputFile) -> Iterator[Cells]:
    csv.field_size_limit(MAX_ROW_BYTES)
    with io.TextIOWrapper(source.open(), "utf-8-sig", errors="surrogateescape", newline="") as file:
        rows = csv.DictReader(file)
        number = 0
        while True:
            number += 1
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                yield Cells(number, error=f"the row is not CSV: {error}")
            else:
                values = {name: value for name, value in row.items() if isinstance(name, str) and value is not None}
                yield Cells(number, values, table=True)


@contextlib.contextmanager
def _arrow_file(source: InputFile) -> Iterator[Any]:
    """A `ParquetFile`; OSError for whatever Arrow finds wrong with it while it is open."""
    if importlib.util.find_spec("pyarrow") is None:
        raise UsageError(f"file {str(source)!r} needs the package pyarrow: pip install pyarrow, or give JSONL or CSV")
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with source.open() as opened, ParquetFile(opened) as file:
            yield file
    except ArrowException as error:
        raise OSError(None, str(error)) from None


def _parquet(source: InputFile) -> Iterator[Cells]:
    number = 0
    with _arrow_file(source) as file:
        for batch in file.iter_batches(batch_size=256):
            for row in batch.to_pylist():
                number += 1
                yield Cells(number, row, table=True)


def _lines(source: InputFile) -> int:
    with source.unpacked() as file:
        lines, last = 0, b"\n"
        while chunk := file.read(1 << 20):
            lines += chunk.count(b"\n")
            last = chunk[-1:]
        return lines + (last != b"\n")


def _parquet_rows(source: InputFile) -> int:
    with _arrow_file(source) as file:
        return int(file.metadata.num_rows)


FORMATS: Mapping[str, Format] = {
    ".jsonl": Format(_jsonl, _lines),
    ".jsonl.gz": Format(_jsonl, _lines),
    ".csv": Format(_csv, lambda source: max(_lines(source) - 1, 0)),
    ".parquet": Format(_parquet, _parquet_rows),
}
