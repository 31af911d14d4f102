"""Binomial tails in log space, Clopper-Pearson bounds, and how many decisions a guarantee needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

_BISECTIONS = 100
"""Halvings of [0, 1]: more than a float can tell apart."""


def at_most(k: int, n: int, p: float) -> float:
    """P(Bin(n, p) <= k). ValueError for n < 0 or p outside [0, 1].

    The tail away from the mean is summed term by term, so a small probability keeps its relative precision.
    """
    if n < 0:
        raise ValueError(f"a binomial needs n >= 0, got {n}")
    _require_share("p", p)
    if k < 0:
        return 0.0
    if k >= n:
        return 1.0
    if p in (0.0, 1.0):
        return 1.0 - p
    if k < n * p:
        return _sum(_log_term(i, n, p) for i in range(k + 1))
    return 1.0 - _sum(_log_term(i, n, p) for i in range(k + 1, n + 1))


def needed_n(alpha: float, delta: float, losses: int = 0) -> int:
    """Fewest decisions n with P(Bin(n, alpha) <= losses) <= delta: below it no threshold can be accepted.

    alpha, delta in (0, 1). With no loss and delta 0.05: 59, 149, 299, 598 for alpha 0.05, 0.02, 0.01, 0.005.
    """
    for name, value in (("alpha", alpha), ("delta", delta)):
        require_open_share(name, value)
    if losses < 0:
        raise ValueError(f"losses must not be negative, got {losses}")
    low = high = losses + 1
    while at_most(losses, high, alpha) > delta:
        low, high = high + 1, 2 * high
    while low < high:
        middle = (low + high) // 2
        if at_most(losses, middle, alpha) <= delta:
            high = middle
        else:
            low = middle + 1
    return low


def upper_bound(k: int, n: int, error: float) -> float:
    """One-sided Clopper-Pearson bound: a rate above it shows k or fewer losses in n with probability below `error`."""
    _require_count(k, n)
    require_open_share("error", error)
    return 1.0 if k == n else _crossing(lambda p: at_most(k, n, p) <= error)


def clopper_pearson(k: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact two-sided interval of a rate from k in n (Clopper & Pearson 1934); (0, 1) for n = 0."""
    _require_count(k, n)
    require_open_share("confidence", confidence)
    if n == 0:
        return 0.0, 1.0
    error = (1.0 - confidence) / 2
    low = 0.0 if k == 0 else _crossing(lambda p: at_most(n - k, n, 1.0 - p) >= error)
    return low, upper_bound(k, n, error)


def require_open_share(name: str, value: float) -> None:
    """ValueError unless 0 < value < 1."""
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name} must be between 0 and 1, both excluded; got {value!r}")


def _require_share(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be in [0, 1], got {value!r}")


def _require_count(k: int, n: int) -> None:
    if not 0 <= k <= n:
        raise ValueError(f"a count of losses must be in [0, n]; got {k} of {n}")


def _crossing(beyond: Callable[[float], bool]) -> float:
    """The least p in [0, 1] with `beyond(p)`, which once true stays true."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if beyond(middle) else (middle, high)
    return high


def _log_term(i: int, n: int, p: float) -> float:
    """log P(Bin(n, p) = i), 0 < p < 1."""
    ways = math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1)
    return ways + i * math.log(p) + (n - i) * math.log1p(-p)


def _sum(logs: Iterable[float]) -> float:
    """Sum of probabilities given by their logarithms, without underflow of single terms."""
    terms = list(logs)
    highest = max(terms)
    return min(math.exp(highest) * math.fsum(math.exp(term - highest) for term in terms), 1.0)
