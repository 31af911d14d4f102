"""This project's engine: one request a hint, all in one call."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from bench.conditions import Outcome, Setup
from bench.workload import Job, Point
from engine.base import BranchRequest, StepRule
from engine.local import LocalEngine


class Rksc:
    """A fresh engine for each point of the grid, so that its largest KV is that point's."""

    def __init__(self, setup: Setup, point: Point) -> None:
        self.counting = False
        rows = max(64, point.branches)
        self._engine = LocalEngine.load(
            setup.source.name, device=setup.device, dtype=setup.dtype, threads=setup.threads, max_rows=rows
        )
        self.settings: dict[str, Any] = {"engine": "rksc", **self._engine.settings}
        # The length is fixed in every condition: no token ends a row.
        self._engine.codec.eos_ids = frozenset()
        self.confidences: list[float] = []
        """Mean top-1 probability of each branch of the last expansion."""

    def begin(self) -> None:
        """Nothing is held: the last round has ended."""

    def expand(self, job: Job) -> Outcome:
        rule = StepRule(max_tokens=job.new_tokens)
        requests = [
            BranchRequest(str(i), (*job.shared, hint), (i,), rule, temperature=0.0) for i, hint in enumerate(job.hints)
        ]
        began = perf_counter()
        results = self._engine.expand(requests)
        seconds = perf_counter() - began
        errors = [result.error for result in results if result.error]
        if errors:
            raise RuntimeError(errors[0])
        # The last token of a path is fed by the first decode step: one more prompt token a row than `prefilled`.
        fed = sum(result.usage.prefilled + len(result.branches) for result in results)
        stats = self._engine.stats()
        branches = [branch for result in results for branch in result.branches]
        tokens = [list(branch.token_ids) for branch in branches]
        self.confidences = [branch.confidence for branch in branches if branch.confidence is not None]
        return Outcome(tokens, seconds, fed, stats.get("kv_peak_bytes", stats["kv_bytes"]))

    def end(self) -> None:
        self._engine.release([event.key for event in self._engine.snapshot()])
