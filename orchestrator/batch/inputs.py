"""Rows of a batch input: JSONL (plain or gz), CSV, Parquet, or a glob of such files, here or at a URL. Streams; a bad
row is a row.

What is wrong with the input as a whole is a UsageError before anything runs; what is wrong with one row is in the row.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from pathlib import Path, PurePosixPath

from orchestrator.batch.formats import FORMATS, Cells
from orchestrator.batch.places import InputFile, is_remote, local_path
from orchestrator.config import UsageError
from search.types import Problem


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of the columns that are read. question: "question" also finds "problem"."""

    question: str = "question"
    answer: str = "answer"
    id: str = "id"


@dataclass(frozen=True, slots=True)
class Row:
    """One row. where: file and line. problem: None with the reason in `error` if the row is no problem.

    place: the line, and the file among several, however the input is named.
    """

    where: str
    id: str
    problem: Problem | None
    error: str | None = None
    place: str = ""

    @property
    def key(self) -> str:
        """Digest of what the row says; a row that says nothing is known by its place."""
        problem = self.problem
        parts = (self.place, self.error) if problem is None else (problem.id, problem.text, problem.reference)
        text = "\0".join(str(part) for part in parts)
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Shard:
    """Every count-th row from row `index` on; index from 0."""

    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """`i/n`; UsageError for anything else."""
        index, slash, count = text.partition("/")
        if not slash or not index.isdecimal() or not count.isdecimal() or int(index) >= int(count):
            raise UsageError(f"--shard takes i/n with 0 <= i < n, such as 0/4 to 3/4; got {text!r}")
        return cls(int(index), int(count))


@dataclass(frozen=True)
class BatchInput:
    """The rows of some files, read anew by each call of `rows`."""

    paths: tuple[InputFile, ...]
    columns: Columns = Columns()
    kind: str = "auto"

    @classmethod
    def open(cls, argument: str, columns: Columns | None = None, kind: str = "auto") -> BatchInput:
        """UsageError if no file is meant, or one cannot be read, has no rows, or lacks a column."""
        paths = _paths(argument)
        for path in paths:
            if path.suffix not in FORMATS:
                raise UsageError(f"file {str(path)!r} is none of {', '.join(FORMATS)}")
        opened = cls(tuple(paths), columns or Columns(), kind)
        try:
            first = next(opened._cells(), None)
        except OSError as error:
            raise UsageError(f"input cannot be read: {error.strerror}") from None
        if first is None:
            raise UsageError(f"input {argument!r} has no rows")
        opened._require_columns(first[1])
        return opened

    def rows(self, limit: int | None = None, shard: Shard | None = None) -> Iterator[Row]:
        """limit: of the whole input, before it is split into shards."""
        shard = shard or Shard()
        for path, cells in islice(self._cells(), shard.index, limit, shard.count):
            yield self._row(path, cells)

    def count(self, limit: int | None = None, shard: Shard | None = None) -> int | None:
        """About how many rows there are, from line ends alone where the format has lines; None if all of a file would
        have to be fetched for it."""
        if any(path.fs is not None and path.suffix != ".parquet" for path in self.paths):
            return None
        total = sum(FORMATS[path.suffix].count(path) for path in self.paths)
        shard = shard or Shard()
        total = total if limit is None else min(total, limit)
        return len(range(shard.index, total, shard.count))

    def _cells(self) -> Iterator[tuple[InputFile, Cells]]:
        """OSError names the file that cannot be read, or not to its end."""
        for path in self.paths:
            try:
                for cells in FORMATS[path.suffix].read(path):
                    yield path, cells
            except OSError as error:
                raise OSError(error.errno, f"{str(path)!r}: {error.strerror or error}") from None

    def _require_columns(self, first: Cells) -> None:
        """A column the user named must be in the first row; one row of a table stands for all."""
        named = [c for c, usual in zip(self._names, self._usual, strict=True) if c != usual or first.table]
        for name in named:
            optional = first.table and name in self._usual[1:]
            if first.error is None and self._found(first, name) is None and not optional:
                raise UsageError(
                    f"column {name!r} is not in the input, which has: {', '.join(map(str, first.values)) or 'none'}; "
                    f"map columns with --question, --answer and --id"
                )

    @property
    def _names(self) -> tuple[str, str, str]:
        return self.columns.question, self.columns.answer, self.columns.id

    @property
    def _usual(self) -> tuple[str, str, str]:
        return "question", "answer", "id"

    def _found(self, cells: Cells, name: str) -> str | None:
        if name not in cells.values and name == "question" and "problem" in cells.values:
            return "problem"
        return name if name in cells.values else None

    def _row(self, path: InputFile, cells: Cells) -> Row:
        where = f"{path}:{cells.number}"
        place = name = f"{self._prefixes[path]}{cells.number}"
        if cells.error is not None:
            return Row(where, name, None, cells.error, place)
        given = cells.values.get(self.columns.id)
        name = name if given is None or not str(given).strip() else str(given)
        column = self._found(cells, self.columns.question)
        text = None if column is None else cells.values[column]
        if not isinstance(text, str):
            return Row(where, name, None, f"no text under {self.columns.question!r}", place)
        reference = cells.values.get(self.columns.answer)
        try:
            problem = Problem(text, name, self.kind, None if reference in (None, "") else str(reference))
            "\0".join((text, name, problem.reference or "")).encode()
        except UnicodeEncodeError:
            return Row(where, name.encode("utf-8", "replace").decode(), None, "the row is not UTF-8 text", place)
        except ValueError as error:
            return Row(where, name, None, str(error), place)
        return Row(where, name, problem, place=place)

    @cached_property
    def _prefixes(self) -> dict[InputFile, str]:
        """What tells the files apart: nothing for one, else names, with as many of their folders as that takes."""
        if len(self.paths) == 1:
            return {self.paths[0]: ""}
        left = {path: _parts(path) for path in self.paths}
        prefixes: dict[InputFile, str] = {}
        for depth in range(1, max(map(len, left.values())) + 1):
            ends = {path: "/".join(parts[-depth:]) for path, parts in left.items()}
            count = Counter(ends.values())
            prefixes |= {path: f"{end}:" for path, end in ends.items() if count[end] == 1}
            left = {path: parts for path, parts in left.items() if path not in prefixes}
        return prefixes


def _parts(path: InputFile) -> tuple[str, ...]:
    return PurePosixPath(os.path.abspath(path.place) if path.fs is None else path.place).parts


def _paths(argument: str) -> list[InputFile]:
    if is_remote(argument):
        files = InputFile.matching(argument)
    else:
        path = local_path(argument)
        if path.is_dir():
            raise UsageError(f"{argument!r} is a folder; give a file or a pattern such as {str(path / '*.jsonl')!r}")
        names = [str(path)] if path.is_file() else sorted(glob.glob(str(path), recursive=True))
        files = [InputFile(name) for name in dict.fromkeys(names) if Path(name).is_file()]
    if not files:
        raise UsageError(f"no such file: {argument!r} (files: {', '.join(FORMATS)}, or a pattern with *)")
    return files
