"""What a step's text tells about the path: whether it states the final answer."""

from __future__ import annotations

import re

_FINAL = re.compile(
    r"\\boxed\s*\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}"
    r"|^\s*#{4}\s*\S"
    r"|\b(?:final\s+)?answer\b\s*(?:is\s*:?|:)\s*\**\s*[^\s*:]",
    re.IGNORECASE | re.MULTILINE,
)
_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"


def states_final(text: str) -> bool:
    """True when the step names its final answer outside an unfinished `<think>` block."""
    if _THINK_OPEN in text or _THINK_CLOSE in text:
        text = text.rpartition(_THINK_CLOSE)[2] if _THINK_CLOSE in text else text.partition(_THINK_OPEN)[0]
    return bool(_FINAL.search(text))
