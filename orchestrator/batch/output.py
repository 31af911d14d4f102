"""The folder a job writes into, and the folder a command reads: `--out` as it is, or a copy on this machine."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

from engine.models import cache_folder
from orchestrator.batch.journal import StorageError
from orchestrator.batch.mirror import Mirror, fetch, files_of
from orchestrator.batch.places import RemoteFolder, is_remote, local_path
from orchestrator.batch.stop import Stop
from orchestrator.config import UsageError


@contextlib.contextmanager
def written(out: str, scope: Sequence[str], upload_s: float, spool: Path | None, stop: Stop) -> Iterator[Path]:
    """The folder for a run's files, the names of which are `scope`; of a URL, a spool folder that is uploaded.

    stop is set to "storage" when nothing can be uploaded any more. StorageError at the end if the rest cannot be.
    """
    if not out.strip():
        raise UsageError("--out is empty: give a folder, or a URL of one ('.' is the current folder)")
    if not is_remote(out):
        yield local_path(out)
        return
    remote = RemoteFolder(out)
    digest = blake2b(f"{out.rstrip('/')}\0{scope[0]}".encode(), digest_size=12).hexdigest()
    folder = (spool or cache_folder() / "spool") / digest
    mirror = Mirror(remote, folder, scope, upload_s, lambda error: stop.set("storage"))
    mirror.begin()
    try:
        yield mirror.spool
    except BaseException:
        with contextlib.suppress(StorageError):
            mirror.end()
        raise
    mirror.end()


@contextlib.contextmanager
def read(out: str, events_only: bool = False) -> Iterator[Path]:
    """The folder, or a copy of what is at the URL, which is removed again. events_only: what `status` reads."""
    if not is_remote(out):
        yield local_path(out)
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            _copy(RemoteFolder(out), Path(folder), events_only)
        except OSError as error:
            raise UsageError(f"cannot read {out!r}: {error.strerror or error}") from None
        if not (Path(folder) / "runs").is_dir():
            raise UsageError(f"{out!r} is no folder of `run --out`: it has no runs")
        yield Path(folder)


def _copy(remote: RemoteFolder, folder: Path, events_only: bool) -> None:
    for name, parts in files_of(remote.names()).items():
        if name.endswith(".owner") or (events_only and not name.endswith(("run.json", "events.jsonl"))):
            continue
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        fetch(remote, parts[-2:] if events_only else parts, path)
