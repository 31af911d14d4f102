"""Metrics: their names, kinds and tags in one table, a sink that may be Ray's or nothing, and an engine's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol


@dataclass(frozen=True, slots=True)
class Metric:
    """Ray exports `NAME` as `ray_NAME`, a counter as `ray_NAME_total`. bounds: upper ends of a histogram's buckets."""

    kind: Literal["counter", "gauge", "histogram"]
    text: str
    tags: tuple[str, ...] = ("engine",)
    bounds: tuple[float, ...] = ()


_SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)

METRICS: Mapping[str, Metric] = {
    "rksc_tokens_generated": Metric("counter", "Tokens generated"),
    "rksc_tokens_prefilled": Metric("counter", "Tokens prefilled"),
    "rksc_tokens_reused": Metric("counter", "Tokens whose KV was held"),
    "rksc_tokens_scored": Metric("counter", "Tokens fed to score branches"),
    "rksc_expansions": Metric("counter", "Orders answered"),
    "rksc_scores": Metric("counter", "Branches scored"),
    "rksc_exits": Metric("counter", "Scores read before the last layer"),
    "rksc_evictions": Metric("counter", "KV segments evicted"),
    "rksc_queue_length": Metric("gauge", "Requests that wait in an engine"),
    "rksc_decode_rows": Metric("gauge", "Rows that decode in an engine"),
    "rksc_kv_bytes": Metric("gauge", "Bytes of KV held on the device"),
    "rksc_kv_host_bytes": Metric("gauge", "Bytes of KV held in host memory"),
    "rksc_hit_tokens_predicted": Metric("counter", "Prefix tokens the index expected an engine to hold"),
    "rksc_hit_tokens_actual": Metric("counter", "Prefix tokens the engine held"),
    "rksc_queue_seconds": Metric("histogram", "Seconds an order waited or travelled", bounds=_SECONDS),
    "rksc_failures": Metric("counter", "Failures of engines and of the index, by who failed"),
    "rksc_skipped_verifications": Metric("counter", "Verifications left out by CGEE, by rule", ("rule",)),
    "rksc_problems": Metric("counter", "Problems whose search ended, by outcome", ("outcome",)),
    "rksc_problems_running": Metric("gauge", "Problems under way", ()),
    "rksc_problem_seconds": Metric("histogram", "Seconds of a search", (), _SECONDS),
    "rksc_job_rows": Metric("gauge", "Rows of a batch job, by state", ("run", "state")),
    "rksc_job_tokens": Metric("gauge", "Tokens a batch job generated in this process", ("run",)),
    "rksc_job_skipped_verifications": Metric("gauge", "Verifications a batch job left out", ("run",)),
}
"""No tag names a problem: series would grow without bound."""

_COUNTERS = {
    "generated": "rksc_tokens_generated",
    "prefilled": "rksc_tokens_prefilled",
    "reused": "rksc_tokens_reused",
    "scored": "rksc_tokens_scored",
    "expansions": "rksc_expansions",
    "scores": "rksc_scores",
    "exits": "rksc_exits",
    "evicted": "rksc_evictions",
}
_GAUGES = {
    "waiting": "rksc_queue_length",
    "decode_rows": "rksc_decode_rows",
    "kv_bytes": "rksc_kv_bytes",
    "kv_host_bytes": "rksc_kv_host_bytes",
}


class Metrics(Protocol):
    """Where metrics go. A name or tag that is not in `METRICS` is a KeyError or ValueError."""

    def count(self, name: str, amount: float, **tags: str) -> None:
        """Add to a counter; nothing for 0."""
        ...

    def set(self, name: str, value: float, **tags: str) -> None:
        """Set a gauge."""
        ...

    def observe(self, name: str, value: float, **tags: str) -> None:
        """Put a value into a histogram."""
        ...


class NoMetrics:
    """Where there is no Ray: nothing is kept."""

    def count(self, name: str, amount: float, **tags: str) -> None:
        return None

    def set(self, name: str, value: float, **tags: str) -> None:
        return None

    def observe(self, name: str, value: float, **tags: str) -> None:
        return None


class EngineMeter:
    """Turns the `stats` of one engine, read now and then, into metrics."""

    def __init__(self, metrics: Metrics, engine: str) -> None:
        self._metrics = metrics
        self._engine = engine
        self._before: dict[str, float] = {}

    def update(self, stats: Mapping[str, Any]) -> None:
        """What was counted since the last call, and the gauges as they are; keys an engine lacks are left out."""
        for key, name in _COUNTERS.items():
            now = float(stats.get(key, 0))
            self._metrics.count(name, max(now - self._before.get(key, 0.0), 0.0), engine=self._engine)
            self._before[key] = now
        for key, name in _GAUGES.items():
            if key in stats:
                self._metrics.set(name, float(stats[key]), engine=self._engine)
