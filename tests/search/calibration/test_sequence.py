"""Fixed sequence testing, and the guarantee itself by simulation."""

import random
from bisect import bisect_left

import pytest

from search.calibration.binomial import at_most
from search.calibration.sequence import fixed_sequence, loosest

ALPHA, DELTA, CALIBRATIONS = 0.01, 0.05, 2000
RISKS = (0.002, 0.005, 0.0099, 0.0101, 0.02, 0.05)
"""True risks of the candidates, strict to loose; the fourth is the first that must not be accepted."""
FALSE_ALARM = 1e-6
"""Chance that a correct procedure, violating with probability exactly delta, fails the simulation's bound."""


def slack(trials: int, rate: float) -> int:
    """Most events that are compatible with `rate`: P(Bin(trials, rate) > slack) <= FALSE_ALARM."""
    count = int(trials * rate)
    while 1 - at_most(count, trials, rate) > FALSE_ALARM:
        count += 1
    return count


def simulated_losses(n: int, stream: random.Random) -> list[int]:
    """Losses of all candidates on the same n decisions; a decision lost by a strict one is lost by all looser ones."""
    losses = [0] * len(RISKS)
    for _ in range(n):
        first = bisect_left(RISKS, stream.random())
        for i in range(first, len(RISKS)):
            losses[i] += 1
    return losses


@pytest.mark.parametrize("n", [300, 1000])
def test_over_2000_calibrations_the_violation_rate_is_at_most_delta(n: int) -> None:
    stream = random.Random(20_260_609 + n)
    violations = naive_violations = useful = 0
    for _ in range(CALIBRATIONS):
        losses = simulated_losses(n, stream)
        chosen = loosest(fixed_sequence(losses, n, ALPHA, DELTA))
        violations += chosen is not None and RISKS[chosen] > ALPHA
        useful += chosen is not None
        naive = max((i for i, count in enumerate(losses) if count / n <= ALPHA), default=0)
        naive_violations += RISKS[naive] > ALPHA
    bound = slack(CALIBRATIONS, DELTA)
    assert bound < 1.5 * CALIBRATIONS * DELTA
    assert violations <= bound
    assert naive_violations > 5 * bound  # the world is hard enough to tell a wrong procedure
    assert useful > CALIBRATIONS / 2


def test_the_sequence_stops_at_the_first_failure() -> None:
    tests = fixed_sequence([0, 0, 9, 0], 300, 0.01, 0.05)
    assert [test.accepted for test in tests] == [True, True, False, False]
    assert tests[3].p_value == tests[0].p_value < 0.05 < tests[2].p_value
    assert loosest(tests) == 1


def test_nothing_is_accepted_when_the_strictest_fails() -> None:
    assert loosest(fixed_sequence([1, 0], 300, 0.01, 0.05)) is None
    assert loosest([]) is None


@pytest.mark.parametrize(("n", "accepted"), [(298, None), (299, 0)])
def test_no_loss_suffices_from_299_decisions_on(n: int, accepted: int | None) -> None:
    assert loosest(fixed_sequence([0], n, 0.01, 0.05)) == accepted


def test_counts_outside_n_and_levels_outside_0_1_are_refused() -> None:
    with pytest.raises(ValueError, match="5 of 4"):
        fixed_sequence([5], 4, 0.1, 0.1)
    with pytest.raises(ValueError, match="alpha"):
        fixed_sequence([0], 4, 0.0, 0.1)
