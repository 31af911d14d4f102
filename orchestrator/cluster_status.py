"""`status` without a folder: the engines, indexes and drivers on a running Ray cluster, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from actors.names import session_of

Row = Mapping[str, Any]
_HEAD = ("engine", "node", "pid", "incarnation", "state", "waiting", "rows", "KV", "hit rate", "generated")


def lines_of(actors: Mapping[str, Row]) -> list[str]:
    """actors: `stats` of indexes and engines by actor name, as `orchestrator.cluster.look` gives them.

    One paragraph an index, with the driver it serves and the engines behind it.
    """
    if not actors:
        return ["no orchestrator runs on this cluster"]
    sessions: dict[str, dict[str, Row]] = {}
    for name, row in actors.items():
        session, engine = session_of(name)
        sessions.setdefault(session, {})[engine] = row
    lines: list[str] = []
    for session, rows in sessions.items():
        engines = {name: row for name, row in rows.items() if name}
        drivers = sorted({str(row["driver"]) for row in engines.values() if "driver" in row})
        lines += [
            f"{session}: {len(engines)} engines, driver {', '.join(drivers) or 'unknown'}",
            f"  index: {_index(rows.get('', {'state': 'gone'}))}",
            *(f"  {line}" for line in _table(engines)),
        ]
    return lines


def _index(row: Row) -> str:
    """State, and every count the index has."""
    counts = ", ".join(f"{key} {value}" for key, value in row.items() if isinstance(value, int | float))
    return f"{row['state']}; {counts}" if counts else str(row["state"])


def _table(engines: Mapping[str, Row]) -> Iterator[str]:
    cells = [list(_HEAD), *([name, *_engine(row)] for name, row in sorted(engines.items()))]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for cell in cells:
        yield "  ".join(text.ljust(width) for text, width in zip(cell, widths, strict=True)).rstrip()


def _engine(row: Row) -> list[str]:
    keys = ("node", "pid", "incarnation", "state", "waiting", "decode_rows")
    return [*(str(row.get(key, "-")) for key in keys), _bytes(row), _hit_rate(row), str(row.get("generated", 0))]


def _bytes(row: Row) -> str:
    return f"{row['kv_bytes'] / (1 << 20):.1f} MiB" if "kv_bytes" in row else "-"


def _hit_rate(row: Row) -> str:
    """Share of the tokens that rows needed in which KV was held already."""
    reused, prefilled = row.get("reused", 0), row.get("prefilled", 0)
    return f"{reused / (reused + prefilled):.0%}" if reused + prefilled else "-"
