"""Series as rows for JSON, rows as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from bench.harness import EXPANSIONS, Series, ratio
from bench.markdown import markdown
from bench.workload import Point

REFERENCE = "rksc"
COLUMNS = (
    ("expansion", "expansion"),
    ("prefix", "prefix"),
    ("branches", "branches"),
    ("condition", "condition"),
    ("seconds", "seconds_median"),
    ("x rksc", "times_rksc"),
    ("spread", "spread"),
    ("prefill tokens", "prefill_tokens"),
    ("decode tokens/s", "decode_tokens_per_s"),
    ("peak KV MB", "peak_kv_mb"),
    ("KV / distinct", "kv_over_distinct"),
    ("equal", "equal"),
)


def rows(measured: Mapping[str, Mapping[str, Series]], point: Point, token_bytes: int) -> list[dict[str, Any]]:
    """One row for each expansion and condition. token_bytes: KV bytes of one token, all layers."""
    base = measured.get(REFERENCE) or next(iter(measured.values()), {})
    found = []
    for expansion in EXPANSIONS:
        distinct = token_bytes * (point.cold_tokens if expansion == "cold" else point.second_tokens)
        for condition, series in measured.items():
            found.append(
                {
                    "condition": condition,
                    "expansion": expansion,
                    "prefix": point.prefix,
                    "branches": point.branches,
                    "new_tokens": point.new_tokens,
                    **_times(series[expansion], base[expansion] if REFERENCE in measured else None),
                    **_counts(series[expansion], base[expansion], distinct),
                }
            )
    return found


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table."""
    cells = [[name for name, _ in COLUMNS]] + [[_cell(_shown(row), key) for _, key in COLUMNS] for row in found]
    return markdown(cells)


def _times(series: Series, reference: Series | None) -> dict[str, Any]:
    against = ratio(series.seconds, reference.seconds) if reference else None
    return {
        "seconds_median": median(series.seconds),
        "seconds_all": series.seconds,
        "first_token_seconds": series.first_token_s,
        "decode_tokens_per_s": series.decode_tokens_per_s,
        "times_rksc": against.median if against else None,
        "times_rksc_low": against.low if against else None,
        "times_rksc_high": against.high if against else None,
    }


def _counts(series: Series, reference: Series, distinct_bytes: int) -> dict[str, Any]:
    pairs = list(zip(series.tokens, reference.tokens, strict=True))
    equal = sum(own == other for own, other in pairs)
    return {
        "prefill_tokens": series.prefill_tokens,
        "peak_kv_bytes": series.peak_kv_bytes,
        "distinct_kv_bytes": distinct_bytes,
        "outputs_equal": equal == len(pairs),
        "branches_equal": equal,
        "branches_compared": len(pairs),
    }


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    spread = row["times_rksc"] is not None and f"{row['times_rksc_low']:.2f}-{row['times_rksc_high']:.2f}"
    return {
        **row,
        "spread": spread or None,
        "peak_kv_mb": row["peak_kv_bytes"] / 1e6,
        "kv_over_distinct": row["peak_kv_bytes"] / row["distinct_kv_bytes"],
        "equal": "yes" if row["outputs_equal"] else f"{row['branches_equal']} of {row['branches_compared']}",
    }


def _cell(row: Mapping[str, Any], key: str) -> str:
    value = row[key]
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.2f}" if value < 100 else f"{value:.0f}"
    return str(value)
