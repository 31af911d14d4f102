"""Bytes of KV a token takes, from a model's configuration alone: no weights, no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.models import ModelSource, gguf_values

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 4}
"""`auto` may come to be float32, on CPUs."""


def kv_bytes_per_token(source: ModelSource, dtype: str) -> int | None:
    """2 x layers x key-value heads x head size x bytes of a number; None where the configuration does not say.

    An upper bound: layers with a window, or without attention, hold less.
    """
    if source.kind == "simulated":
        return None
    layers, kv_heads, head_dim = _gguf(source.path) if source.kind == "gguf" else _config(source.path)
    if not (layers and kv_heads and head_dim):
        return None
    return 2 * layers * kv_heads * head_dim * _BYTES[dtype]


def _config(folder: Path) -> tuple[int, int, int]:
    """(layers, key-value heads, head size) of a transformers config.json; 0 for what is not there."""
    whole: Mapping[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = whole.get("text_config", whole)
    heads = config.get("num_attention_heads") or 0
    head_dim = config.get("head_dim") or (config.get("hidden_size", 0) // heads if heads else 0)
    return config.get("num_hidden_layers") or 0, config.get("num_key_value_heads") or heads, head_dim


def _gguf(path: Path) -> tuple[int, int, int]:
    """As `_config`, from a GGUF header."""
    wanted = ("block_count", "embedding_length", "attention.head_count", "attention.head_count_kv")
    found = gguf_values(path, (*wanted, "attention.key_length"))
    heads = found.get("attention.head_count", 0)
    head_dim = found.get("attention.key_length") or (found.get("embedding_length", 0) // heads if heads else 0)
    return found.get("block_count", 0), found.get("attention.head_count_kv") or heads, head_dim
