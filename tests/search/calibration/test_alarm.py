"""The alarm on audits, by simulation: seldom false however long one looks, and quick when the rate is exceeded."""

import math
import random

import pytest

from search.calibration.alarm import BettingAlarm
from search.calibration.binomial import at_most

RUNS, LEVEL = 1000, 0.05
FALSE_ALARM = 1e-6
"""Chance that an alarm with probability exactly `LEVEL` fails the bound of the simulation."""


def trials_until_alarm(alarm: BettingAlarm, rate: float, horizon: int, stream: random.Random) -> float:
    """Audits until the alarm, or infinity. Audits between two losses are drawn at once (geometric)."""
    while alarm.trials < horizon:
        gap = int(math.log(1.0 - stream.random()) / math.log1p(-rate))
        if gap:
            alarm.observe(False, gap)
        if alarm.observe(True):
            return alarm.trials
    return math.inf


@pytest.mark.parametrize(("rate", "horizon"), [(0.05, 3000), (0.01, 15_000)])
def test_false_alarms_are_bounded_over_long_runs_at_the_very_rate(rate: float, horizon: int) -> None:
    stream = random.Random(17)
    times = [trials_until_alarm(BettingAlarm(rate, LEVEL), rate, horizon, stream) for _ in range(RUNS)]
    alarms = sum(math.isfinite(time) for time in times)
    bound = next(k for k in range(RUNS) if 1 - at_most(k, RUNS, LEVEL) <= FALSE_ALARM)
    assert alarms <= bound < 2 * RUNS * LEVEL
    assert alarms > 0  # the bound is not met by an alarm that never rings


@pytest.mark.parametrize(("rate", "within"), [(0.05, 60), (0.02, 160), (0.01, 320)])
def test_five_times_the_rate_is_found_within_3_2_over_the_rate(rate: float, within: int) -> None:
    """In at least 19 of 20 runs."""
    stream = random.Random(18)
    times = [trials_until_alarm(BettingAlarm(rate, LEVEL), 5 * rate, 10 * within, stream) for _ in range(RUNS)]
    assert sum(time <= within for time in times) >= 0.95 * RUNS


def test_wealth_starts_at_one_and_the_alarm_stays_raised() -> None:
    alarm = BettingAlarm(0.05)
    assert alarm.log_wealth == pytest.approx(0.0)
    while not alarm.raised:
        alarm.observe(True)
    assert alarm.losses == alarm.trials <= 3
    alarm.observe(False, 10_000)
    assert alarm.log_wealth < 0 and alarm.raised


def test_wealth_is_a_martingale_at_the_rate_and_shrinks_below_it() -> None:
    """Mean of the wealth after n audits, over all outcomes: 1 at the rate, less below it."""

    def mean(rate: float, n: int = 12) -> float:
        total = 0.0
        for losses in range(n + 1):
            alarm = BettingAlarm(0.1)
            alarm.trials, alarm.losses = n, losses
            total += math.comb(n, losses) * rate**losses * (1 - rate) ** (n - losses) * math.exp(alarm.log_wealth)
        return total

    assert mean(0.1) == pytest.approx(1.0)
    assert mean(0.05) < 1.0 < mean(0.2)


def test_equal_audits_may_be_booked_at_once() -> None:
    one, many = BettingAlarm(0.1), BettingAlarm(0.1)
    for _ in range(7):
        one.observe(False)
    many.observe(False, 7)
    for _ in range(3):
        one.observe(True)
    many.observe(True, 3)
    assert (one.trials, one.losses, one.log_wealth, one.raised) == (10, 3, many.log_wealth, many.raised)


@pytest.mark.parametrize("values", [(0.0, 0.05), (1.0, 0.05), (0.1, 0.0)])
def test_rates_and_levels_are_checked(values: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        BettingAlarm(*values)
    with pytest.raises(ValueError, match="at least once"):
        BettingAlarm(0.1).observe(True, 0)


def test_audits_of_an_earlier_time_count_as_if_they_had_been_seen_here() -> None:
    seen, restored = BettingAlarm(0.1), BettingAlarm(0.1)
    for loss in (True, False, False):
        seen.observe(loss)
    restored.restore(3, 1, False)
    assert (restored.trials, restored.losses, restored.raised) == (3, 1, False)
    assert restored.log_wealth == seen.log_wealth
    restored.restore(4, 4, False)
    assert restored.raised
    calm = BettingAlarm(0.1)
    calm.restore(100, 0, True)  # raised once, and calm since: it stays raised
    assert calm.raised and calm.log_wealth < 0
    with pytest.raises(ValueError, match="2 losses in 1 audits"):
        calm.restore(1, 2, False)
