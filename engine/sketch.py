"""Sketches of prompts and how near two signatures are; needs neither weights nor torch.

A new tree's hidden states are known to nobody before it runs, so a root that is near is found by its tokens: trigrams,
each projected at random by its hash, summed and quantised. The cosine of two sketches is about the share of trigrams
that the prompts have in common.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from hashlib import shake_256

from engine.base import token_bytes

SKETCH_BYTES = 128
_GRAM = 3


def sketch(tokens: Sequence[int]) -> bytes:
    """`SKETCH_BYTES` signed bytes; empty for fewer tokens than a trigram has."""
    grams = {tuple(tokens[at : at + _GRAM]) for at in range(len(tokens) - _GRAM + 1)}
    if not grams:
        return b""
    total = [0] * SKETCH_BYTES
    for gram in grams:
        digest = shake_256(token_bytes(gram)).digest(SKETCH_BYTES)
        total = [a + b for a, b in zip(total, digest, strict=True)]
    centred = [2 * a - 255 * len(grams) for a in total]
    most = max(map(abs, centred)) or 1
    return struct.pack(f"{SKETCH_BYTES}b", *(round(127 * a / most) for a in centred))


def nearness(a: bytes, b: bytes) -> float:
    """Cosine of two signatures of signed bytes, in [-1, 1]; 0 for empty ones and for different lengths."""
    if len(a) != len(b) or not a:
        return 0.0
    x, y = (struct.unpack(f"{len(s)}b", s) for s in (a, b))
    norm = math.sqrt(sum(i * i for i in x) * sum(j * j for j in y))
    return sum(i * j for i, j in zip(x, y, strict=True)) / norm if norm else 0.0
