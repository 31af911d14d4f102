"""How near two signatures are; needs nothing but their bytes."""

from __future__ import annotations

import math
import struct


def nearness(a: bytes, b: bytes) -> float:
    """Cosine of two signatures of signed bytes, in [-1, 1]; 0 for empty ones and for different lengths."""
    if len(a) != len(b) or not a:
        return 0.0
    x, y = (struct.unpack(f"{len(s)}b", s) for s in (a, b))
    norm = math.sqrt(sum(i * i for i in x) * sum(j * j for j in y))
    return sum(i * j for i, j in zip(x, y, strict=True)) / norm if norm else 0.0
