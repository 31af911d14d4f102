"""Measured speeds of engines: exponentially weighted averages of prefill tokens/s and seconds a decode step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from actors.placement import PREFILL_RATE, STEP_S, Load
from search.types import Outcome

_WEIGHT = 0.3


@dataclass(slots=True)
class EngineLoad:
    """What one engine has outstanding, and how fast it was so far."""

    prefill_tokens: int = 0
    rows: int = 0
    prefill_rate: float = PREFILL_RATE
    step_s: float = STEP_S

    def view(self) -> Load:
        return Load(self.prefill_tokens, self.rows, self.prefill_rate, self.step_s)

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Update rates from one call's outcomes; what took no measurable time teaches nothing."""
        prefilled = sum(o.cost.prefilled for o in outcomes)
        seconds = sum(o.cost.seconds.get("prefill", 0.0) for o in outcomes)
        if prefilled >= 16 and seconds > 1e-4:
            self.prefill_rate += _WEIGHT * (prefilled / seconds - self.prefill_rate)
        steps = max((len(s.token_ids) for o in outcomes for s in o.samples), default=0)
        seconds = sum(o.cost.seconds.get("decode", 0.0) for o in outcomes)
        if steps >= 4 and seconds > 1e-4:
            self.step_s += _WEIGHT * (seconds / steps - self.step_s)
