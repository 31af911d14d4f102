"""Metrics: what is counted from engines and events, and that the dashboard shows what the code exports."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from actors.metering import DriverMeter
from actors.metrics import METRICS, EngineMeter, Metric
from search.types import Cost, Event, Outcome

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"


class Kept:
    """Metrics in memory; as strict about names and tags as Ray's."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.gauges: dict[tuple[str, ...], float] = {}
        self.seen: list[tuple[str, float]] = []

    def count(self, name: str, amount: float, **tags: str) -> None:
        self.counts[key(name, "counter", tags)] += amount

    def set(self, name: str, value: float, **tags: str) -> None:
        self.gauges[key(name, "gauge", tags)] = value

    def observe(self, name: str, value: float, **tags: str) -> None:
        key(name, "histogram", tags)
        self.seen.append((name, value))


def key(name: str, kind: str, tags: dict[str, str]) -> tuple[str, ...]:
    known = METRICS[name]
    assert (known.kind, set(known.tags)) == (kind, set(tags))
    return (name.removeprefix("rksc_"), *(tags[tag] for tag in known.tags))


def test_an_engines_counters_are_told_as_what_was_added():
    kept = Kept()
    meter = EngineMeter(kept, "e")
    meter.update({"generated": 5, "kv_bytes": 100, "device": "cpu"})
    meter.update({"generated": 12, "kv_bytes": 60, "evicted": 3, "waiting": 2, "decode_rows": 4})
    meter.update({"generated": 12, "kv_bytes": 60, "evicted": 3, "waiting": 0, "decode_rows": 4})
    assert +kept.counts == {("tokens_generated", "e"): 12, ("evictions", "e"): 3}
    assert kept.gauges == {("kv_bytes", "e"): 60, ("queue_length", "e"): 0, ("decode_rows", "e"): 4}


def test_a_driver_counts_outcomes_failures_and_events():
    kept, passed = Kept(), []
    meter = DriverMeter(kept)
    meter.outcome(Outcome("x", "p", "r", engine="e", cost=Cost(predicted_hit=7, actual_hit=9, seconds={"queue": 0.5})))
    failed = meter.failures(lambda who, why: passed.append((who, why)))
    failed("index", "no answer")
    sink = meter.watching(passed.append)
    events = [
        Event("start", "a", 0.0, {}),
        Event("start", "b", 0.0, {}),
        Event("start", "c", 0.0, {}),
        Event("skip", "a", 1.0, {"rule": "agreement", "verifications": 6}),
        Event("finish", "a", 2.5, {"error": None}),
        Event("finish", "b", 3.0, {"error": "all failed"}),
    ]
    for event in events:
        sink(event)
    assert kept.gauges == {("problems_running",): 1}
    sink(Event("left", "c", 3.0, {"why": "CancelledError"}))
    assert passed[:-1] == [("index", "no answer"), *events]
    assert kept.gauges == {("problems_running",): 0}
    assert kept.counts == {
        ("hit_tokens_predicted", "e"): 7,
        ("hit_tokens_actual", "e"): 9,
        ("failures", "index"): 1,
        ("skipped_verifications", "agreement"): 6,
        ("problems", "done"): 1,
        ("problems", "failed"): 1,
        ("problems", "left"): 1,
    }
    assert kept.seen == [("rksc_queue_seconds", 0.5), ("rksc_problem_seconds", 2.5), ("rksc_problem_seconds", 3.0)]


def test_a_batch_jobs_progress_is_gauges():
    kept = Kept()
    progress: dict[str, Any] = {"done": 3, "failed": 1, "running": 2, "skipped": 4, "total": None}
    progress |= {"tokens": 100, "saved": 5}
    meter = DriverMeter(kept)
    meter.job("tot", progress)
    assert ("job_rows", "tot", "total") not in kept.gauges
    meter.job("tot", {**progress, "total": 20})
    assert kept.gauges["job_rows", "tot", "total"] == 20 and kept.gauges["job_rows", "tot", "done"] == 3
    assert kept.gauges["job_tokens", "tot"] == 100 and kept.gauges["job_skipped_verifications", "tot"] == 5


def test_no_tag_names_a_problem():
    assert {tag for metric in METRICS.values() for tag in metric.tags} == {"engine", "rule", "outcome", "run", "state"}


def exported(name: str, metric: Metric) -> set[str]:
    """Names of a metric's series at Ray's Prometheus endpoint."""
    endings = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}[metric.kind]
    return {f"ray_{name}{ending}" for ending in endings}


def test_the_dashboard_shows_every_metric_and_nothing_that_is_not_exported():
    dashboard = json.loads(DASHBOARD.read_text())
    panels = dashboard["panels"]
    texts = [target["expr"] for panel in panels for target in panel["targets"]]
    used = {name for text in texts for name in re.findall(r"ray_rksc_\w+", text)}
    known = {name: exported(name, metric) for name, metric in METRICS.items()}
    assert used <= set().union(*known.values())
    assert [name for name, series in known.items() if not used & series] == []
    for panel in panels:
        metrics = [name for name in known if any(s in t["expr"] for t in panel["targets"] for s in known[name])]
        tags = {tag for name in metrics for tag in METRICS[name].tags} | {"le"}
        grouped = {
            tag for t in panel["targets"] for by in re.findall(r"by \(([^)]*)\)", t["expr"]) for tag in by.split(", ")
        }
        assert grouped <= tags, panel["title"]


def test_the_dashboard_is_a_model_grafana_takes():
    dashboard = json.loads(DASHBOARD.read_text())
    assert dashboard["title"] and dashboard["uid"] and dashboard["schemaVersion"] >= 36
    (variable,) = dashboard["templating"]["list"]
    assert (variable["type"], variable["query"]) == ("datasource", "prometheus")
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places) and all(x + w <= 24 for _, w, x, _ in places)
    for panel in dashboard["panels"]:
        assert panel["title"] and panel["type"] == "timeseries"
        for target in panel["targets"]:
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert target["expr"].count("(") == target["expr"].count(")")
