"""Two runs side by side: answers that changed, right ones lost and won, tokens and seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.batch.folder import Run
from orchestrator.render import printable
from search.answers import equivalent


@dataclass(frozen=True, slots=True)
class Difference:
    """Ids by what happened to them from the first run to the second. tokens, seconds: of the shared rows, per run."""

    shared: int
    lost: tuple[str, ...]
    won: tuple[str, ...]
    changed: tuple[str, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    tokens: tuple[int, int]
    seconds: tuple[float, float]


def compare(first: Run, second: Run) -> Difference:
    """lost: right before and not now; won: the reverse; changed: another answer, neither lost nor won."""
    rows = [_by_id(run) for run in (first, second)]
    shared = [name for name in rows[0] if name in rows[1]]
    pairs = [(name, rows[0][name], rows[1][name]) for name in shared]
    lost = tuple(n for n, a, b in pairs if a.get("correct") and not b.get("correct"))
    won = tuple(n for n, a, b in pairs if b.get("correct") and not a.get("correct"))
    moved = {*lost, *won}
    changed = tuple(n for n, a, b in pairs if n not in moved and _other(a.get("answer"), b.get("answer")))
    tokens = [sum(int(r[n].get("tokens", {}).get("generated", 0)) for n in shared) for r in rows]
    seconds = [sum(float(r[n].get("seconds", {}).get("total", 0.0)) for n in shared) for r in rows]
    return Difference(
        len(shared),
        lost,
        won,
        changed,
        tuple(name for name in rows[0] if name not in rows[1]),
        tuple(name for name in rows[1] if name not in rows[0]),
        (tokens[0], tokens[1]),
        (seconds[0], seconds[1]),
    )


def lines_of(found: Difference, most: int = 20) -> list[str]:
    """For a terminal. most: ids named of each kind."""
    lines = [f"{found.shared} problems in both"]
    kinds = ("lost", "won", "changed", "only_first", "only_second")
    names = (
        "right before, not now",
        "right now, not before",
        "another answer",
        "only in the first",
        "only in the second",
    )
    for kind, name in zip(kinds, names, strict=True):
        ids: tuple[str, ...] = getattr(found, kind)
        more = f" and {len(ids) - most} more" if len(ids) > most else ""
        lines.append(f"{name}: {len(ids)}" + (f" ({printable(', '.join(ids[:most]))}{more})" if ids else ""))
    lines.append(_change("tokens", *found.tokens, ""))
    lines.append(_change("seconds", *found.seconds, ".1f"))
    return lines


def _by_id(run: Run) -> dict[str, dict[str, Any]]:
    """The error row of an id that was given twice does not stand for the problem that has it."""
    rows: dict[str, dict[str, Any]] = {}
    for row in run.rows():
        if row["id"] not in rows or row.get("error") is None:
            rows[row["id"]] = row
    return rows


def _change(name: str, before: float, now: float, form: str) -> str:
    share = f" ({now / before - 1:+.1%})" if before else ""
    return f"{name}: {before:{form}} -> {now:{form}}{share}"


def _other(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is not b
    return not equivalent(str(a), str(b))
