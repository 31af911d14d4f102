"""A claim beside our figure: one row, and rows as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.markdown import markdown

Paper = float | list[float] | None


@dataclass(frozen=True, slots=True)
class Row:
    """paper, ours: in the unit that `definition` names. n: independent units behind ours.

    low, high: as `definition` says; the smallest and largest ratio of a round for ratios of times, 95 % else.
    """

    claim: str
    paper: Paper
    ours: float | None
    n: int
    low: float | None
    high: float | None
    definition: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def table(rows: Sequence[Row]) -> str:
    """A Markdown table; definitions follow as a list, since they are long."""
    head = ["claim", "paper", "ours", "n", "low", "high"]
    cells = [head, *([r.claim, *map(_cell, (r.paper, r.ours, r.n, r.low, r.high))] for r in rows)]
    meanings = [f"- `{r.claim}`: {r.definition}" for r in rows]
    return "\n".join([markdown(cells), "", *meanings])


def _cell(value: Paper | int) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return "-".join(map(_cell, value))
    return f"{value:.4g}"
