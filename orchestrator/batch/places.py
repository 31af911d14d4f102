"""Where files are: paths of this machine, or any URL that fsspec knows (`s3://`, `gs://`, `az://`, `memory://`)."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from orchestrator.config import UsageError

_PUT_AT_ONCE = frozenset(
    {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "r2", "memory"},
)
"""Protocols whose objects are there as a whole or not at all. Elsewhere an object is written aside, then renamed."""


def is_remote(place: str) -> bool:
    """Whether this is a URL other than `file://`, which is a path as any other."""
    return "::" in place or ("://" in place and not place.startswith(("file://", "local://")))


def local_path(place: str) -> Path:
    """A path, or a `file://` URL as one."""
    return Path(_filesystem(place)[1]) if "://" in place else Path(place)


def _filesystem(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it. UsageError if there is none, or its package is not installed."""
    from fsspec.core import url_to_fs

    try:
        return url_to_fs(url)  # type: ignore[no-any-return]
    except Exception as error:  # the file systems' own constructors raise anything
        raise UsageError(f"cannot use {url!r}: {error}") from None


def _as_os_error(error: Exception) -> OSError:
    """Clients of object stores raise errors of their own."""
    return error if isinstance(error, OSError) else OSError(None, f"{type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file that is read: a path, or a URL with its file system and the path in it."""

    place: str
    fs: Any = None
    path: str = ""

    def __str__(self) -> str:
        return self.place

    @property
    def name(self) -> str:
        return PurePosixPath(self.place).name

    @property
    def suffix(self) -> str:
        """The end of the name that tells the format, `.gz` with what is before it."""
        suffixes = PurePosixPath(self.name.lower()).suffixes
        return "".join(suffixes[-2:] if suffixes[-1:] == [".gz"] else suffixes[-1:])

    def open(self) -> IO[bytes]:
        """Its bytes as they are. OSError if it cannot be read."""
        if self.fs is None:
            return Path(self.place).open("rb")
        try:
            opened: IO[bytes] = self.fs.open(self.path, "rb")
        except Exception as error:
            raise _as_os_error(error) from None
        return opened

    @contextlib.contextmanager
    def unpacked(self) -> Iterator[IO[bytes]]:
        """Its bytes, those in a `.gz` file if it is one. OSError for one that is cut short or damaged, too."""
        with self.open() as file:
            try:
                yield gzip.GzipFile(fileobj=file) if self.suffix.endswith(".gz") else file  # type: ignore[misc]
            except (EOFError, zlib.error) as error:
                raise OSError(None, str(error)) from None

    @classmethod
    def matching(cls, pattern: str) -> list[InputFile]:
        """The files at a URL, or those that its pattern matches, by name; [] if there are none."""
        fs, path = _filesystem(pattern)
        try:
            found = sorted(str(name) for name in fs.glob(path)) if "*" in path else [path]
            return [cls(fs.unstrip_protocol(name), fs, name) for name in found if fs.isfile(name)]
        except Exception as error:
            raise UsageError(f"input {pattern!r} cannot be read: {_as_os_error(error)}") from None


class RemoteFolder:
    """Objects below a URL, by their names in it. Every method raises OSError for whatever goes wrong."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs, root = _filesystem(url)
        self._root = root.rstrip("/")
        protocols = {self._fs.protocol} if isinstance(self._fs.protocol, str) else set(self._fs.protocol)
        self._at_once = bool(protocols & _PUT_AT_ONCE)

    def names(self, under: str = "", deep: bool = True) -> list[str]:
        """Of all objects below; deep: also those in folders of it."""
        try:
            self._fs.invalidate_cache()
            found = self._fs.find(self._path(under), maxdepth=None if deep else 1)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise _as_os_error(error) from None
        return sorted(str(path).removeprefix(self._root).lstrip("/") for path in found)

    def read(self, name: str) -> bytes | None:
        """None if there is no such object."""
        try:
            data: bytes = self._fs.cat_file(self._path(name))
        except FileNotFoundError:
            return None
        except Exception as error:
            raise _as_os_error(error) from None
        return data

    def write(self, name: str, data: bytes) -> None:
        """There as a whole when this returns, or as it was before."""
        path = self._path(name)
        try:
            if self._at_once:
                self._fs.pipe_file(path, data)
                return
            self._fs.makedirs(str(PurePosixPath(path).parent), exist_ok=True)
            self._fs.pipe_file(f"{path}.new", data)
            self._fs.mv(f"{path}.new", path)
        except Exception as error:
            raise _as_os_error(error) from None

    def remove(self, names: Iterable[str]) -> None:
        """Objects that are not there are left out."""
        for name in names:
            try:
                self._fs.rm_file(self._path(name))
            except FileNotFoundError:
                continue
            except Exception as error:
                raise _as_os_error(error) from None

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root
