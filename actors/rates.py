"""What one engine has outstanding, how fast it is, and how much it may be given: averages, credits, deadlines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from actors.placement import PREFILL_RATE, STEP_S, Load
from search.types import Outcome, Score

_WEIGHT = 0.1
_FIRST = 0.25
"""Share of its rows that a new engine is given until it was measured; doubled by every call that succeeds."""

_CROWDED = 1.5
"""Rows, in multiples of a batch, from which a call says too little about the speed of one."""

_TRUSTED = 4
"""Calls after which measured rates may decide what is late."""

HEDGE_FACTOR = 3.0
HEDGE_LEAST_S = 1.0
"""A call is a straggler once it takes so many times what calls of its size take, and no less than so many seconds."""

HANG_FACTOR = 20.0
HANG_LEAST_S = 60.0
"""A call counts as hung once it takes so many times what the longest call of its size could take."""


_FLAT_ROWS = 64
"""Rows that double the time of a step, as long as nothing else is known; and the weight of that, in rows squared."""


@dataclass(slots=True)
class StepFit:
    """Seconds of a decode step over the rows in it: moving averages of both, and how they vary together."""

    mean_s: float = 0.0
    mean_rows: float = 0.0
    variance: float = 0.0
    covariance: float = 0.0

    def add(self, step_s: float, rows: float, weight: float) -> None:
        """weight 1: nothing before this counts."""
        over_s, over_rows = step_s - self.mean_s, rows - self.mean_rows
        self.mean_s += weight * over_s
        self.mean_rows += weight * over_rows
        self.variance = (1 - weight) * (self.variance + weight * over_rows * over_rows)
        self.covariance = (1 - weight) * (self.covariance + weight * over_rows * over_s)

    @property
    def slope(self) -> float:
        """Seconds that a row adds to a step, at most a row's share of it."""
        assumed = self.mean_s / (_FLAT_ROWS + self.mean_rows)
        slope = (self.covariance + _FLAT_ROWS * assumed) / (self.variance + _FLAT_ROWS)
        return min(max(slope, 0.0), self.mean_s / max(self.mean_rows, 1.0))


@dataclass(slots=True)
class EngineLoad:
    """prefill_tokens, rows: orders planned for the engine or sent to it; sent_rows, calls: those sent.

    measured, prefills: calls whose decoding and whose prefill taught something. slowness: seconds that calls take, in
    multiples of what the rates say. call_s: seconds of a call on average. window: share of its rows it may be given.
    turn_s: a row's share of the steps of a full batch that others wait for, where calls are served one by one.
    score_s: seconds of scoring that a row brings; scoring: scores under way, question_s: seconds of one.
    row_seconds: sent rows over time. hardware, slots: see `actors.placement.Load`; None while the engine was not asked.
    """

    prefill_tokens: int = 0
    rows: int = 0
    prefill_rate: float = PREFILL_RATE
    step_s: float = STEP_S
    row_s: float = 0.0
    turn_s: float = 0.0
    score_s: float = 0.0
    scoring: int = 0
    question_s: float = 0.0
    sent_rows: int = 0
    calls: int = 0
    measured: int = 0
    prefills: int = 0
    slowness: float = 1.0
    window: float = 1.0
    call_s: float = 0.0
    calls_back: int = 0
    fit: StepFit = field(default_factory=StepFit)
    row_seconds: float = 0.0
    hardware: str | None = None
    slots: int = 1
    _since_s: float = 0.0
    _rows_back: float = 0.0
    _scored_s: float = 0.0

    def view(self) -> Load:
        tokens = round(self.waiting_s * self.prefill_rate)
        return Load(
            tokens,
            self.rows,
            self.prefill_rate,
            self.step_s,
            self.row_s + self.turn_s,
            self.score_s,
            hardware=self.hardware or "",
            slots=self.slots,
        )

    @property
    def waiting_s(self) -> float:
        """Seconds of prefill and scoring that are outstanding."""
        return self.prefill_tokens / self.prefill_rate + self.scoring * self.question_s

    def send(self, rows: int, now_s: float) -> None:
        """Rows are sent, or back (negative)."""
        self.row_seconds_until(now_s)
        self.sent_rows += rows
        self.calls += 1 if rows > 0 else -1

    def row_seconds_until(self, now_s: float) -> float:
        """`row_seconds`, up to now."""
        self.row_seconds += self.sent_rows * (now_s - self._since_s)
        self._since_s = now_s
        return self.row_seconds

    def idle_s(self, now_s: float) -> float:
        """Seconds since the last call, 0 while something is outstanding."""
        return 0.0 if self.rows or self.calls or self.scoring else now_s - self._since_s

    # -- credits ---------------------------------------------------------------------------------------------------
    def room(self, batch_rows: int, concurrent: bool) -> int:
        """Rows that may be sent now. An engine whose calls share a batch gets a few more than it can decode, so that a
        row that ends has a successor; one that serves call after call gets the next call when the last one is back."""
        if not concurrent:
            return 0 if self.calls else max(int(batch_rows * self.window), 1)
        return max(int(credit_rows(batch_rows) * self.window), 1) - self.sent_rows

    def begin_slowly(self, typical: Load) -> None:
        """A new engine among measured ones: assume their speed, and give it little until it was measured."""
        self.measured = self.prefills = 0
        self.question_s = self._scored_s = 0.0
        self.assume(typical)
        self.window = _FIRST

    def slower_than(self, typical: Load) -> bool:
        """By a quarter or more, in prefill, decoding or scoring."""
        prefills = self.prefills > 0 and self.prefill_rate < 0.8 * typical.prefill_rate
        decodes = self.measured > 0 and self.step_s > 1.25 * typical.step_s
        return prefills or decodes or self.score_s > 1.25 * typical.score_s > 0.0

    def assume(self, typical: Load) -> None:
        """Take rates of others for what was not measured here."""
        if not self.prefills:
            self.prefill_rate = typical.prefill_rate
        if not self.measured:
            self.step_s, self.row_s, self.turn_s = typical.step_s, typical.row_s, 0.0
            self.score_s = typical.score_s

    # -- rates -----------------------------------------------------------------------------------------------------
    def learn(
        self,
        outcomes: Sequence[Outcome],
        call_s: float = 0.0,
        rows: float = 1.0,
        batch_rows: int = 1,
        concurrent: bool = False,
    ) -> None:
        """Update rates from one call's outcomes; what took no measurable time teaches nothing.

        call_s: seconds until the call came back. rows: that decoded together, those of this call or, `concurrent`, of
        all calls meanwhile, each with its share of a step's seconds. batch_rows: that the engine decodes at once; many
        more rows say nothing about one batch.
        """
        self.window = min(self.window * 2, 1.0)
        self.call_s += _weight(self.calls_back) * (call_s - self.call_s)
        self.calls_back += 1
        self._rows_back = (1 - _WEIGHT) * self._rows_back + sum(len(o.samples) for o in outcomes)
        self._scored_s *= 1 - _WEIGHT
        self._learn_score_s()
        prefilled = sum(o.cost.prefilled for o in outcomes)
        prefill_s = sum(o.cost.seconds.get("prefill", 0.0) for o in outcomes)
        if prefilled >= 16 and prefill_s > 1e-4:
            self.prefill_rate += _weight(self.prefills) * (prefilled / prefill_s - self.prefill_rate)
            self.prefills += 1
        steps = max((len(s.token_ids) for o in outcomes for s in o.samples), default=0)
        decode_s = sum(o.cost.seconds.get("decode", 0.0) for o in outcomes)
        if steps >= 4 and decode_s > 1e-4 and rows <= _CROWDED * batch_rows:
            tokens = sum(len(sample.token_ids) for outcome in outcomes for sample in outcome.samples)
            step_s = decode_s / tokens * rows if concurrent else decode_s / steps
            self.fit.add(step_s, rows, _weight(self.measured))
            self.row_s = self.fit.slope
            self.step_s = self.fit.mean_s - self.row_s * self.fit.mean_rows
            self.turn_s = 0.0 if concurrent else self.step_s / batch_rows
            self.measured += 1
            expected_s = self.expected_s(prefilled, steps)
            self.slowness += _WEIGHT * (max(call_s / expected_s, 1.0) - self.slowness)

    def learn_scores(self, scores: Sequence[Score]) -> None:
        """Update what scoring takes, from one call's scores."""
        seconds = sum(score.cost.seconds.get("score", 0.0) for score in scores)
        if scores:
            self.question_s += (_WEIGHT if self.question_s else 1.0) * (seconds / len(scores) - self.question_s)
        self._scored_s += seconds
        self._learn_score_s()

    def _learn_score_s(self) -> None:
        if self.question_s and self._rows_back:
            self.score_s = self._scored_s / self._rows_back

    def expected_s(self, prefill_tokens: int, steps: int) -> float:
        """Seconds of a call by the rates."""
        return prefill_tokens / self.prefill_rate + steps * (self.step_s + self.sent_rows * self.row_s)

    # -- deadlines -------------------------------------------------------------------------------------------------
    def late_s(self, prefill_tokens: int, steps: int) -> float | None:
        """Seconds after which a call is a straggler; None while too little was measured to say."""
        if self.measured < _TRUSTED:
            return None
        return max(HEDGE_FACTOR * self.slowness * self.expected_s(prefill_tokens, steps), HEDGE_LEAST_S)

    def limit_s(self, prefill_tokens: int, steps: int, most_s: float) -> float:
        """Seconds after which a call counts as hung, at most `most_s`."""
        if self.measured < _TRUSTED:
            return most_s
        return min(max(HANG_FACTOR * self.slowness * self.expected_s(prefill_tokens, steps), HANG_LEAST_S), most_s)


def credit_rows(batch_rows: int) -> int:
    """Rows that an engine whose calls share a batch may be given at once: those it decodes, and a few that follow."""
    return batch_rows + max(2, batch_rows // 8)


def _weight(measured: int) -> float:
    """The first measurement replaces what was assumed."""
    return _WEIGHT if measured else 1.0
