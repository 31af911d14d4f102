"""An alarm that may be looked at after every audit: a betting martingale against "the loss rate is at most `rate`"."""

from __future__ import annotations

import math

from search.calibration.binomial import require_open_share

_BETS = (1.5, 2.0, 3.0, 5.0, 10.0, 20.0)
"""Alternatives to bet on, in multiples of the rate; the wealth is the mean over them."""


class BettingAlarm:
    """Watches losses 0/1 for as long as one likes; raised once the evidence against the rate reaches 1 / level.

    For each alternative q > rate the likelihood ratio of Bernoulli(q) to Bernoulli(rate) is a bet whose wealth is a
    supermartingale whenever every loss has conditional probability <= rate; so is the mean over alternatives. By
    Ville's inequality (1939) it ever reaches 1 / level with probability <= level, whenever one looks. Source: I.
    Waudby-Smith and A. Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86 (2024).
    """

    def __init__(self, rate: float, level: float = 0.05) -> None:
        require_open_share("rate", rate)
        require_open_share("level", level)
        self.rate = rate
        self.level = level
        self.trials = 0
        self.losses = 0
        self.raised = False
        # Per bet: what a loss and what its absence add to the logarithm of its wealth.
        alternatives = sorted({min(rate * factor, (1.0 + rate) / 2) for factor in _BETS})
        self._bets = [(math.log(q / rate), math.log1p(-q) - math.log1p(-rate)) for q in alternatives]

    @property
    def log_wealth(self) -> float:
        """Natural logarithm of the evidence now; it may fall again, `raised` does not."""
        kept = self.trials - self.losses
        logs = [self.losses * won + kept * lost for won, lost in self._bets]
        highest = max(logs)
        return highest + math.log(math.fsum(math.exp(log - highest) for log in logs) / len(logs))

    def observe(self, loss: bool, times: int = 1) -> bool:
        """Book `times` equal audits and return whether the alarm is raised."""
        if times < 1:
            raise ValueError(f"an observation counts at least once, got {times}")
        for _ in range(times if loss else 1):
            self.trials += 1 if loss else times
            self.losses += int(loss)
            self.raised = self.raised or self.log_wealth >= -math.log(self.level)
        return self.raised

    def restore(self, trials: int, losses: int, raised: bool) -> None:
        """Book audits of an earlier time whose order is not known: the evidence is weighed once, behind all of them."""
        if not 0 <= losses <= trials:
            raise ValueError(f"{losses} losses in {trials} audits cannot be")
        self.trials += trials
        self.losses += losses
        self.raised = self.raised or raised or self.log_wealth >= -math.log(self.level)
