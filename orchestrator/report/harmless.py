"""Texts of models and users made harmless for a page: nothing steers a terminal or a browser, nothing is endless."""

from __future__ import annotations

import html
import json
from typing import Any

MAX_TEXT = 20_000
"""Characters of one text that a report shows."""
_MARKS = frozenset("\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")


def visible(text: str, limit: int = MAX_TEXT) -> str:
    """Control and direction characters by their code in angle brackets, surrogates replaced, long texts cut."""
    cut = text if len(text) <= limit else f"{text[:limit]} ... ({len(text) - limit} more characters)"
    return "".join(c if _plain(c) else f"\u27e8U+{ord(c):04X}\u27e9" for c in cut)


def escaped(text: object) -> str:
    """For HTML and SVG, in texts and quoted attributes."""
    return html.escape(visible(str(text)), quote=True)


def script_json(value: Any) -> str:
    """JSON that may stand in a <script> element: it cannot close it, open a comment, or hold a character of `visible`.

    Texts are made visible, numbers that are not finite become null.
    """
    text = json.dumps(_safe(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain(c: str) -> bool:
    if c in "\n\t":
        return True
    return not (ord(c) < 32 or 127 <= ord(c) < 160 or c in _MARKS or 0xD800 <= ord(c) < 0xE000)


def _safe(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, float):
        return round(value, 6) if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {visible(str(key), 500): _safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(item) for item in value]
    return value
