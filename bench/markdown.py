"""Markdown tables of measured rows."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(cells: Sequence[Sequence[str]]) -> str:
    """A table whose first row is the heading, padded so that columns line up."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]])
