"""What a driver sees - outcomes, failures, events of searches and batch jobs - as metrics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from actors.metrics import Metrics, NoMetrics
from search.driver import EventSink
from search.types import Event, Outcome

_JOB_STATES = ("done", "failed", "running", "skipped")


class DriverMeter:
    """Thread-safe. `outcome` and `failures` are for a dispatcher, `watching` and `job` for whoever gets events."""

    def __init__(self, metrics: Metrics | None = None) -> None:
        self._metrics = metrics or NoMetrics()
        self._running = 0
        self._lock = threading.Lock()

    def send_to(self, metrics: Metrics) -> None:
        """What is counted from now on goes there; without a call it goes nowhere."""
        self._metrics = metrics

    def outcome(self, outcome: Outcome) -> None:
        cost, engine = outcome.cost, outcome.engine
        self._metrics.count("rksc_hit_tokens_predicted", cost.predicted_hit, engine=engine)
        self._metrics.count("rksc_hit_tokens_actual", cost.actual_hit, engine=engine)
        self._metrics.observe("rksc_queue_seconds", cost.seconds.get("queue", 0.0), engine=engine)

    def failures(self, told: Callable[[str, str], None]) -> Callable[[str, str], None]:
        """A callback (who failed, why) that counts and hands on."""

        def see(who: str, reason: str) -> None:
            self._metrics.count("rksc_failures", 1, engine=who)
            told(who, reason)

        return see

    def watching(self, sink: EventSink | None) -> EventSink:
        """A sink that counts events of searches and hands them on."""

        def see(event: Event) -> None:
            self._search(event)
            if sink is not None:
                sink(event)

        return see

    def job(self, run: str, progress: Mapping[str, Any]) -> None:
        """A batch job's `progress` event."""
        for state in _JOB_STATES:
            self._metrics.set("rksc_job_rows", progress[state], run=run, state=state)
        if progress["total"] is not None:
            self._metrics.set("rksc_job_rows", progress["total"], run=run, state="total")
        self._metrics.set("rksc_job_tokens", progress["tokens"], run=run)
        self._metrics.set("rksc_job_skipped_verifications", progress["saved"], run=run)

    def _search(self, event: Event) -> None:
        if event.kind == "start":
            self._now_running(1)
        elif event.kind == "skip":
            amount = event.data["verifications"]
            self._metrics.count("rksc_skipped_verifications", amount, rule=str(event.data["rule"]))
        elif event.kind == "finish":
            self._now_running(-1)
            outcome = "failed" if event.data["error"] is not None else "done"
            self._metrics.count("rksc_problems", 1, outcome=outcome)
            self._metrics.observe("rksc_problem_seconds", event.t_s)
        elif event.kind == "left":
            self._now_running(-1)
            self._metrics.count("rksc_problems", 1, outcome="left")

    def _now_running(self, change: int) -> None:
        with self._lock:
            self._running += change
            self._metrics.set("rksc_problems_running", self._running)
