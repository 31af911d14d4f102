"""Journal of one problem: a header, its waves in told order, and the result once it is there. Synced after each wave.

A torn last record is cut off. Behind a damaged record nothing can be replayed: what is whole before it is kept, the
file as it was is put aside under `.damaged`, and `damage` says so. No pickle; records are parsed with size bounds.
Outcomes of the wave under way stand beside it (`landed`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from orchestrator.batch.frames import append_frames, read_frames
from orchestrator.batch.landed import LandedFile
from orchestrator.batch.records import BadRecordError, pack, problem_from, to_plain, unpack, wave_from
from search.types import Outcome, Problem
from search.wave_log import WaveRecord

SCHEMA = 1


class StorageError(OSError):
    """The disk is full, or a file of the run cannot be written."""


class JournalError(ValueError):
    """A journal that cannot be used; the message names the file and why."""


@dataclass(frozen=True, slots=True)
class JournalContent:
    """What a journal holds. size: its whole bytes. finish: the result row and the tree, of a finished search."""

    problem: Problem
    fingerprint: str
    seed: int
    waves: tuple[WaveRecord, ...]
    size: int
    finish: Mapping[str, Any] | None = None
    torn: bool = False
    damage: str | None = None


class Journal:
    """A `search.wave_log.WaveLog` on one file. fingerprint: of the settings the search runs under.

    after: called behind every wave that is on disk; what it raises ends the search, which can then be resumed.
    JournalError for another schema, other settings, or another problem's file.
    """

    def __init__(
        self,
        path: Path,
        problem: Problem,
        fingerprint: str,
        seed: int,
        after: Callable[[WaveRecord], None] | None = None,
    ) -> None:
        self.path = path
        self._header = {"kind": "header", "schema": SCHEMA, "fingerprint": fingerprint, "seed": seed}
        self._problem = problem
        self._after = after or (lambda wave: None)
        found = read_journal(path) if path.exists() else None
        if found is not None:
            self._require(found)
        self._waves = found.waves if found else ()
        self.finish = found.finish if found else None
        self.damage = found.damage if found else None
        self._size = found.size if found else 0
        self._landed = LandedFile(path.with_suffix(".landed"), self._first_record())
        if self.damage:
            shutil.copyfile(path, path.with_suffix(".damaged"))

    def waves(self) -> tuple[WaveRecord, ...]:
        return self._waves

    async def append(self, wave: WaveRecord) -> None:
        await asyncio.to_thread(self._write, {"kind": "wave", **to_plain(wave)})
        self._landed.clear()
        self._after(wave)

    def landed(self) -> Mapping[str, Outcome]:
        return self._landed.outcomes

    def keep(self, outcome: Outcome) -> None:
        self._landed.keep(outcome)

    async def close(self, finish: Mapping[str, Any]) -> None:
        """The search is over; finish: plain values."""
        await asyncio.to_thread(self._write, {"kind": "finish", **finish})

    def discard(self) -> None:
        """Begin anew: nothing of what was written counts."""
        self.path.unlink(missing_ok=True)
        self._landed.clear()
        self._waves, self.finish, self._size = (), None, 0

    def _write(self, record: Mapping[str, Any]) -> None:
        try:
            self._append(record)
        except OSError as error:
            raise StorageError(error.errno, f"cannot write {str(self.path)!r}: {error.strerror}") from None

    def _append(self, record: Mapping[str, Any]) -> None:
        records = [pack(record)]
        if self._size == 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            records.insert(0, self._first_record())
        self._size = append_frames(self.path, records, self._size)
        if len(records) > 1:
            _sync_folder(self.path.parent)

    def _first_record(self) -> bytes:
        return pack({**self._header, "problem": to_plain(self._problem)})

    def _require(self, found: JournalContent) -> None:
        if found.problem != self._problem:
            what = "another problem" if found.problem.id != self._problem.id else "another question or answer"
            raise JournalError(
                f"journal {str(self.path)!r} is of {what} than row {self._problem.id!r} has now; "
                "give the row as it was, or take another --name or --out"
            )
        there, here = (found.fingerprint, found.seed), (self._header["fingerprint"], self._header["seed"])
        if there != here:
            raise JournalError(f"journal {str(self.path)!r} was written under other settings: {there}, now {here}")


def journal_path(folder: Path, key: str) -> Path:
    """Where the journal of a row is: two letters of its digest make a folder, so that none gets too large."""
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return folder / digest[:2] / f"{digest}.journal"


def read_journal(path: Path) -> JournalContent | None:
    """What the file holds; None if it has no whole header. JournalError for an unknown schema or another kind of file.

    Also for a file of another process that is still being written: it then ends at the last whole record.
    """
    try:
        frames = read_frames(path)
    except ValueError as error:
        raise JournalError(str(error)) from None
    except OSError as error:
        raise JournalError(f"journal {str(path)!r} cannot be read: {error.strerror}") from None
    if not frames.payloads:
        if frames.damage:
            raise JournalError(f"journal {str(path)!r} is damaged from its start ({frames.damage}); remove it")
        return None
    try:
        header = _header(unpack(frames.payloads[0]), path)
        waves, finish = _body(frames.payloads[1:])
    except BadRecordError as error:
        raise JournalError(f"journal {str(path)!r}: {error}") from None
    return JournalContent(*header, waves, frames.size, finish, frames.torn, frames.damage)


def _header(record: Any, path: Path) -> tuple[Problem, str, int]:
    if not isinstance(record, dict) or record.get("kind") != "header":
        raise BadRecordError("the first record is no header")
    if record.get("schema") != SCHEMA:
        raise JournalError(
            f"journal {str(path)!r} has schema version {record.get('schema')!r}, this program reads version {SCHEMA}"
        )
    fingerprint, seed = record.get("fingerprint"), record.get("seed")
    if not isinstance(fingerprint, str) or not isinstance(seed, int):
        raise BadRecordError("the header has no fingerprint or no seed")
    return problem_from(record.get("problem")), fingerprint, seed


def _body(payloads: tuple[bytes, ...]) -> tuple[tuple[WaveRecord, ...], Mapping[str, Any] | None]:
    waves: list[WaveRecord] = []
    finish: Mapping[str, Any] | None = None
    for payload in payloads:
        record = unpack(payload)
        kind = record.pop("kind", None) if isinstance(record, dict) else None
        if kind == "wave":
            waves.append(wave_from(record))
        elif kind == "finish":
            finish = record
        else:
            raise BadRecordError(f"unknown kind of record {kind!r}")
    return tuple(waves), finish


def _sync_folder(folder: Path) -> None:
    """A new file's name is on disk only when its folder is."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
