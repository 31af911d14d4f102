"""A run's files at a URL where nothing can be appended: a spool folder on this machine's disk and its copy there.

The job works in the spool as in any folder. Every few seconds what has changed is uploaded: a file in segments of a
fixed size, of which an append-only file changes the last one only. Journals go before the results that stand on them.
A process that begins takes the copy at the URL, or what its predecessor left in the spool if nobody wrote since.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from itertools import count
from pathlib import Path, PurePosixPath

from orchestrator.batch.journal import StorageError
from orchestrator.batch.places import RemoteFolder
from orchestrator.config import UsageError

SEGMENT = 8 << 20
"""Bytes of one object; the last one of a file may have less."""
_PART = re.compile(r"\.part-(\d{5})$")
_LEFT_HERE = (".new", ".landed")
_STREAMS = 8
_FAILURES = 3
_CALM = 3.0
"""How many uploads' time a sign of life is waited for."""
_LONGEST_S = 60.0


class Mirror:
    """scope: files and folders (ending in "/") of the run. upload_s: seconds between uploads.

    on_failure: called once, from another thread, when nothing could be uploaded several times in a row.
    """

    def __init__(
        self,
        remote: RemoteFolder,
        spool: Path,
        scope: Sequence[str],
        upload_s: float,
        on_failure: Callable[[StorageError], None],
    ) -> None:
        self.spool = spool
        self._remote = remote
        self._scope = tuple(scope)
        self._upload_s = upload_s
        self._on_failure = on_failure
        self._owner = f"{self._scope[0]}.owner"
        self._name = uuid.uuid4().hex
        self._beats = count()
        self._digests: dict[str, list[bytes]] = {}
        self._stats: dict[str, tuple[int, int]] = {}
        self._uploaded: set[str] = set()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._upload, name="upload", daemon=True)

    # -- begin and end ---------------------------------------------------------------------------------------------
    def begin(self) -> None:
        """The spool holds the run's newest state when this returns. UsageError if another process has the run."""
        try:
            self.spool.mkdir(parents=True, exist_ok=True)
            self._lock = (self.spool / ".lock").open("w")
            self._take()
        except OSError as error:
            raise UsageError(f"cannot use {self._remote.url!r}: {error.strerror or error}") from None
        self._thread.start()

    def end(self) -> None:
        """Upload the rest and give the run free. StorageError if that fails; the spool then stays."""
        self._ending.set()
        self._thread.join()
        try:
            self.push()
            self._remote.remove([self._owner])
        except OSError as error:
            raise self._failure(error) from None
        shutil.rmtree(self.spool, ignore_errors=True)
        self._lock.close()

    def _take(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{self._remote.url!r} is being written by another run on this machine; wait for it"
            ) from None
        left, mine = self._remote.read(self._owner), self.spool / ".owner"
        name, *scope = mine.read_text().splitlines() if mine.exists() else [""]
        if left is not None and left.split()[0] == name.encode():
            if scope == list(self._scope):
                self._go_on(left)
                return
            # another run of this results file: its files give way once they are there
            other = Mirror(self._remote, self.spool, scope, self._upload_s, self._on_failure)
            other._go_on(left)
            other.push()
        elif left is not None:
            self._require_silence(left)
        self._clear()
        self._fetch()
        self._beat()
        mine.write_text("\n".join((self._name, *self._scope)))

    def _go_on(self, left: bytes) -> None:
        """Under the name of the process that left the spool: killed at any time, its spool still is the newest state.

        Which segments there are as here is not known: all are uploaded.
        """
        name, beats, *_ = left.decode().split()
        self._name, self._beats = name, count(int(beats) + 1)
        self._digests = {name: [b""] * len(parts) for name, parts in files_of(self._objects()).items()}
        self._beat()

    def _require_silence(self, left: bytes) -> None:
        """Whoever writes there gives a sign of life with every upload."""
        with contextlib.suppress(IndexError, ValueError):
            time.sleep(_CALM * min(float(left.split()[2]), _LONGEST_S))
        if self._remote.read(self._owner) != left:
            raise UsageError(f"{self._remote.url!r} is being written by another process; wait for it, or stop it")

    def _beat(self) -> None:
        self._remote.write(self._owner, f"{self._name} {next(self._beats)} {self._upload_s}".encode())

    def _clear(self) -> None:
        """What is here is older than what is there."""
        (self.spool / ".owner").unlink(missing_ok=True)
        for path in self.spool.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != ".lock":
                path.unlink()

    def _fetch(self) -> None:
        for name, parts in files_of(self._objects()).items():
            path = self.spool / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._digests[name] = fetch(self._remote, parts, path)

    def _objects(self) -> list[str]:
        folders = [name for name in self._scope if name.endswith("/")]
        files = tuple(name for name in self._scope if not name.endswith("/"))
        found = [name for folder in folders for name in self._remote.names(folder.rstrip("/"))]
        return [*found, *(name for name in self._remote.names(deep=False) if _PART.sub("", name) in files)]

    # -- uploading -------------------------------------------------------------------------------------------------
    def push(self) -> None:
        """Upload what has changed. OSError if it cannot be, or if another process has taken the run over."""
        owner = self._remote.read(self._owner)
        if owner is None or owner.split()[0] != self._name.encode():
            raise OSError(None, "another process has taken over this run")
        found = self._found()
        changed = [name for name, stat in found.items() if self._stats.get(name) != stat]
        with ThreadPoolExecutor(_STREAMS) as streams:
            for rank in sorted({_rank(name) for name in changed}):
                names = [name for name in changed if _rank(name) == rank]
                list(streams.map(self._push, names, [found[name] for name in names]))
        for name in [name for name in self._digests if name not in found]:
            self._remote.remove(_object(name, i) for i in range(len(self._digests.pop(name))))
        self._beat()

    def _upload(self) -> None:
        failures = 0
        while not self._ending.wait(self._upload_s):
            try:
                self.push()
                failures = 0
            except OSError as error:
                failures += 1
                if failures == _FAILURES or "taken over" in str(error):
                    self._on_failure(self._failure(error))
                    return

    def _failure(self, error: OSError) -> StorageError:
        return StorageError(error.errno, f"cannot write {self._remote.url!r}: {error.strerror or error}")

    def _found(self) -> dict[str, tuple[int, int]]:
        """Size and time of every file that goes there."""
        found = {}
        for path in self._local():
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                found[path.relative_to(self.spool).as_posix()] = (stat.st_size, stat.st_mtime_ns)
        return found

    def _local(self) -> Iterator[Path]:
        for name in self._scope:
            path = self.spool / name
            paths = (p for p in path.rglob("*") if p.is_file()) if name.endswith("/") else [path]
            yield from (p for p in paths if not p.name.endswith(_LEFT_HERE))

    def _push(self, name: str, stat: tuple[int, int]) -> None:
        """A file's segments that differ from those there; whole ones of before are taken to be as they were, unless
        this is the first upload of the process. What came behind the size in `stat` waits: it may stand on other files.
        """
        known = self._digests.get(name, [])
        first = max(len(known) - 1, 0) if name in self._uploaded else 0
        first = 0 if stat[0] < first * SEGMENT else first
        digests = known[:first]
        try:
            with (self.spool / name).open("rb") as file:
                file.seek(first * SEGMENT)
                while (data := file.read(min(SEGMENT, max(stat[0] - file.tell(), 0)))) or not digests:
                    digests.append(blake2b(data, digest_size=16).digest())
                    i = len(digests) - 1
                    if known[i : i + 1] != digests[-1:]:
                        self._remote.write(_object(name, i), data)
        except FileNotFoundError:
            return
        self._remote.remove(_object(name, i) for i in range(len(digests), len(known)))
        self._digests[name], self._stats[name] = digests, stat
        self._uploaded.add(name)


def files_of(objects: Sequence[str]) -> dict[str, list[str]]:
    """Files by name with their objects in order; names that lead out of the folder are left out."""
    files: dict[str, list[str]] = {}
    for name in sorted(objects):
        if ".." in PurePosixPath(name).parts or name.startswith("/"):
            continue
        files.setdefault(_PART.sub("", name), []).append(name)
    return files


def fetch(remote: RemoteFolder, parts: Sequence[str], path: Path) -> list[bytes]:
    """Write a file's segments to `path`; their digests."""
    digests = []
    with path.open("wb") as file:
        for part in parts:
            data = remote.read(part) or b""
            digests.append(blake2b(data, digest_size=16).digest())
            file.write(data)
    return digests


def _object(name: str, segment: int) -> str:
    return name if segment == 0 else f"{name}.part-{segment:05}"


def _rank(name: str) -> int:
    """Settings, then journals, then results, then events: a result never stands without its journal."""
    if name.endswith(".journal"):
        return 1
    return 2 if name.startswith("results") else 3 if name.endswith("events.jsonl") else 0
