"""Where a job is: counts of problems, nodes, tokens and reuse, from waves and results as they come."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from search.wave_log import WaveRecord


class Tally:
    """Counts of this process, beside rows that earlier ones finished. total: about how many rows, once it is known."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self.total: int | None = None
        self.counts: Counter[str] = Counter()
        """done, failed, correct, wrong, skipped (finished before), nodes, tokens, prefilled, verified, saved."""
        self.reused: Counter[str] = Counter()
        self.engines: dict[str, Counter[str]] = {}
        self.running: dict[str, float] = {}
        self.best: float | None = None

    @property
    def seconds(self) -> float:
        return self._clock() - self._began

    def wave(self, wave: WaveRecord) -> None:
        for outcome in wave.outcomes:
            cost = outcome.cost
            self.counts.update(nodes=sum(not sample.blank for sample in outcome.samples), tokens=cost.generated)
            self.counts.update(prefilled=cost.prefilled)
            self.reused.update(cost.reused)
            scores = [s.verdict.score for s in outcome.samples if s.verdict and s.verdict.score is not None]
            self.best = max([*scores, self.best or 0.0]) if scores else self.best
            if outcome.engine:
                row = self.engines.setdefault(outcome.engine, Counter())
                row.update(expansions=1, generated=cost.generated)
        self.counts.update(verified=wave.verification.verified)

    def begin(self, problem_id: str) -> None:
        self.running[problem_id] = self.seconds

    def leave(self, problem_id: str) -> None:
        """Not under way any more: done, failed or put off."""
        self.running.pop(problem_id, None)

    def finish(self, row: dict[str, Any]) -> None:
        self.counts["failed" if row.get("error") is not None else "done"] += 1
        if row.get("correct") is not None:
            self.counts["correct" if row["correct"] else "wrong"] += 1
        self.counts["saved"] += int(row.get("skips", {}).get("saved_verifications", 0))

    def eta_s(self) -> float | None:
        """Seconds to go at the pace so far; None before the first result or without a total."""
        finished = self.counts["done"] + self.counts["failed"]
        if not finished or self.total is None:
            return None
        return max(self.total - self.counts["skipped"] - finished, 0) * self.seconds / finished

    def snapshot(self) -> dict[str, Any]:
        """JSON values for a `progress` event."""
        seconds, eta = self.seconds, self.eta_s()
        return {
            "total": self.total,
            **{name: self.counts[name] for name in ("done", "failed", "skipped", "correct", "wrong")},
            "running": len(self.running),
            **{name: self.counts[name] for name in ("nodes", "tokens", "prefilled", "verified", "saved")},
            "reused": dict(self.reused),
            "tokens_per_s": round(self.counts["tokens"] / seconds, 1) if seconds else 0.0,
            "seconds": round(seconds, 2),
            "eta_s": None if eta is None else round(eta, 1),
            "best_score": self.best,
            "engines": {name: dict(row) for name, row in sorted(self.engines.items())},
        }
