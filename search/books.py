"""Books of one search under way: what it has spent and seen, and how a wave is written down and taken up again."""

from __future__ import annotations

from collections import defaultdict

from search.budget import Spent
from search.cgee.skipping import Skipping
from search.scale import Scale
from search.tree import SearchTree
from search.types import Cost, Outcome
from search.wave_log import WaveLog, WaveRecord


class Books:
    """started: clock time, that of earlier processes taken off. judging, num_judged, told: of the wave under way."""

    def __init__(self, tree: SearchTree, started: float, log: WaveLog | None, skipping: Skipping) -> None:
        self.tree = tree
        self.started = started
        self.log = log
        self.skipping = skipping
        self.spent = Spent()
        self.cost = Cost()
        self.judging, self.num_judged = Cost(), 0
        self.told: list[Outcome] = []
        self.engines: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.warnings: list[str] = []
        self.errors: list[str] = []
        self.failed = 0
        self.num_released = 0
        self.merged = 0
        self.scale = Scale()
        self._num_logged = 0

    def open_wave(self) -> None:
        self.judging, self.num_judged, self.told = Cost(), 0, []

    def judged(self, cost: Cost, paths: int) -> None:
        """Verification of a portion of the wave."""
        self.judging += cost
        self.num_judged += paths
        self.cost += cost
        self.spent.verifications += paths

    def close_wave(self) -> None:
        self.spent.expansions += len(self.told)
        self.spent.nodes = len(self.tree) - 1

    def record(self, seconds: float) -> WaveRecord:
        """The wave just told. seconds: since the search began."""
        new, self._num_logged = tuple(self.warnings[self._num_logged :]), len(self.warnings)
        report = self.skipping.report
        return WaveRecord(tuple(self.told), self.judging, self.num_judged, seconds, new, report, self.merged)

    def restore(self, wave: WaveRecord) -> None:
        """Books as they were behind a wave of the log; its outcomes are booked already."""
        self.cost += wave.verification
        self.spent.verifications += wave.verifications
        self.spent.expansions += len(wave.outcomes)
        self.spent.nodes = len(self.tree) - 1
        self.warnings += [text for text in wave.warnings if text not in self.warnings]
        self._num_logged = len(self.warnings)
        self.skipping.report = wave.skips
        self.merged = wave.merged

    def book(self, outcome: Outcome) -> None:
        cost = outcome.cost
        self.cost += cost
        self.spent.tokens += cost.generated
        if outcome.error is not None and not outcome.cancelled:
            self.errors.append(outcome.error)
            self.failed += 1
        if outcome.engine:
            row = self.engines[outcome.engine]
            row["expansions"] += 1
            row["generated"] += cost.generated
            row["prefilled"] += cost.prefilled
            row["reused"] += sum(cost.reused.values())
