"""Learn-then-Test (Angelopoulos et al. 2021) with fixed sequence testing: which thresholds may be used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from search.calibration.binomial import at_most, require_open_share


@dataclass(frozen=True, slots=True)
class Tested:
    """One candidate's test of "risk > alpha": its losses, and the p-value P(Bin(n, alpha) <= losses)."""

    losses: int
    p_value: float
    accepted: bool


def fixed_sequence(losses: Sequence[int], n: int, alpha: float, delta: float) -> list[Tested]:
    """Tests of the candidates in order, strict to loose: accepted until the first p-value above delta.

    losses: of each candidate on the same n independent decisions. Then P(some accepted risk > alpha) <= delta, since
    the first candidate whose risk is above alpha must be accepted for an error, and that has probability <= delta.
    Only the order is fixed beforehand; candidates need not be nested. ValueError for counts outside [0, n].
    """
    for name, value in (("alpha", alpha), ("delta", delta)):
        require_open_share(name, value)
    for count in losses:
        if not 0 <= count <= n:
            raise ValueError(f"losses must be in [0, n]; got {count} of {n}")
    tests: list[Tested] = []
    going = True
    for count in losses:
        p_value = at_most(count, n, alpha)
        going = going and p_value <= delta
        tests.append(Tested(count, p_value, going))
    return tests


def loosest(tests: Sequence[Tested]) -> int | None:
    """Index of the last accepted candidate; None if not even the strictest is accepted."""
    accepted = [i for i, test in enumerate(tests) if test.accepted]
    return accepted[-1] if accepted else None
