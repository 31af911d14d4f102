"""Codecs: a model's own tokenizer and chat template (no weights, no torch), and bytes for engines without one."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from engine.models import ModelSource, cache_folder, gguf_context_length

_MARK = "\u2060ASSISTANT\u2060"


class HFCodec:
    """Tokenizer of a transformers model; a GGUF file's tokenizer is converted once and cached."""

    def __init__(self, source: ModelSource) -> None:
        self._tokenizer = _load(source)
        self._source = source

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        ids = {self._tokenizer.eos_token_id, *self._generation_eos()}
        return frozenset(i for i in ids if i is not None)

    @cached_property
    def context_length(self) -> int:
        if self._source.kind == "gguf":
            return gguf_context_length(self._source.path)
        config = json.loads((self._source.path / "config.json").read_text())
        config = {**config, **config.get("text_config", {})}
        for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
            if isinstance(config.get(name), int):
                return int(config[name])
        return 1 << 30

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        if self._tokenizer.chat_template is None:
            return "\n\n".join(m["content"] for m in messages) + "\n\n"
        text: str = self._tokenizer.apply_chat_template(
            [dict(m) for m in messages], tokenize=False, add_generation_prompt=True
        )
        return text

    def next_turn(self, text: str) -> str:
        chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}]
        return self.render([*chat, {"role": "user", "content": text}]).partition(_MARK)[2]

    def begin(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Tokens of `render`; without a chat template behind the token that the tokenizer itself begins texts with."""
        ids = self.encode(self.render(messages))
        first = self._tokenizer.bos_token_id
        plain = self._tokenizer.chat_template is None and first is not None
        return [first, *ids] if plain and self._tokenizer.encode("")[:1] == [first] else ids

    def special(self, text: str) -> int | None:
        """Id of the special token that reads so, which `decode` leaves out; None if there is none."""
        found: int | None = self._special.get(text)
        return found

    @cached_property
    def _special(self) -> dict[str, int]:
        added = self._tokenizer.added_tokens_decoder
        return {str(token): number for number, token in added.items() if token.special}

    def turn_end(self) -> str:
        """What closes an assistant's turn; nothing without a chat template."""
        if self._tokenizer.chat_template is None:
            return ""
        chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}]
        closed: str = self._tokenizer.apply_chat_template(chat, tokenize=False)
        return closed.partition(_MARK)[2]

    def _generation_eos(self) -> list[int]:
        file = self._source.path / "generation_config.json"
        if not file.is_file():
            return []
        ids = json.loads(file.read_text()).get("eos_token_id")
        return ids if isinstance(ids, list) else [ids]


class ByteCodec:
    """One token a UTF-8 byte, 256 is end of sequence; chat turns in plain text. Used without a model."""

    eos_ids = frozenset({256})

    def __init__(self, context_length: int = 32768) -> None:
        self.context_length = context_length

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(t for t in token_ids if t < 256).decode("utf-8", "replace")

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        return "".join(f"<{m['role']}>{m['content']}\n" for m in messages) + "<assistant>"

    def next_turn(self, text: str) -> str:
        return f"\n<user>{text}\n<assistant>"


def _load(source: ModelSource) -> Any:
    from transformers import AutoTokenizer

    if source.kind == "folder":
        return AutoTokenizer.from_pretrained(source.path)
    if source.kind == "hub":
        return AutoTokenizer.from_pretrained(source.name)
    folder = converted_folder(source) / "tokenizer"
    if not folder.is_dir():
        tokenizer = AutoTokenizer.from_pretrained(source.path.parent, gguf_file=source.path.name)
        with written_once(folder) as temporary:
            tokenizer.save_pretrained(temporary)
    return AutoTokenizer.from_pretrained(folder)


def converted_folder(source: ModelSource) -> Path:
    """Cache folder of a converted GGUF file, keyed by its fingerprint: all environments that have the file share it."""
    return cache_folder() / "models" / source.fingerprint


@contextlib.contextmanager
def written_once(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes `folder` in one rename; when several processes race, the first one wins."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        inner = Path(temporary) / "files"
        inner.mkdir()
        yield inner
        with contextlib.suppress(OSError):
            os.rename(inner, folder)
    if not folder.is_dir():
        raise OSError(f"cannot write the model cache {folder}")
