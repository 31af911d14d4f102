"""Audit of tiers that approximate: some reuses are computed exactly, too, and a tier that errs switches itself off."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from engine.base import stream_key

logger = logging.getLogger(__name__)

_Z = 1.6449
_DECISIVE = 0.1
_FEWEST = 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One reuse against the exact computation, at the next token. kl: KL(exact || reused) in nats.

    agrees: both prefer the same token. flip: the reused KV prefers a token that the exact model finds less probable
    than its own by at least 0.1: a decisive change, not a tie that rounding breaks.
    """

    kl: float
    agrees: bool
    flip: bool


def compare(exact: Tensor, reused: Tensor) -> Finding:
    """Logits [V] of one position, float32."""
    p, q = torch.log_softmax(exact, -1), torch.log_softmax(reused, -1)
    best, other = int(p.argmax()), int(q.argmax())
    kl = float((p.exp() * (p - q)).sum())
    return Finding(max(kl, 0.0), best == other, float(p[best].exp() - p[other].exp()) >= _DECISIVE)


@dataclass(slots=True)
class Audit:
    """Findings of one tier. share: of reuses audited, drawn by (seed, reuse), so a repeated run audits the same ones.

    The tier is switched off by evidence of harm at any time (a 95 % lower bound above its budget), and once there are
    enough findings (30 for KL; for flips as many as would certify the budget without one) as soon as a 95 % upper
    bound is above its budget. Bounds: normal for the mean KL, Clopper-Pearson for flips.
    """

    tier: str
    share: float
    seed: int
    kl_budget: float
    flip_budget: float
    n: int = 0
    flips: int = 0
    agreed: int = 0
    skipped: int = 0
    reason: str | None = None
    _kl: list[float] = field(default_factory=lambda: [0.0, 0.0])

    @property
    def on(self) -> bool:
        return self.reason is None

    @property
    def mean_kl(self) -> float:
        return self._kl[0] / self.n if self.n else 0.0

    def due(self, reuse: bytes) -> bool:
        """Whether this reuse is drawn."""
        return (stream_key(self.seed, self.tier, reuse.hex()) % (1 << 32)) / (1 << 32) < self.share

    def note(self, finding: Finding) -> None:
        self.n += 1
        self.flips += finding.flip
        self.agreed += finding.agrees
        self._kl[0] += finding.kl
        self._kl[1] += finding.kl**2
        if self.on and (reason := self._fault()) is not None:
            self.reason = reason
            logger.warning("ASKS tier %r switched itself off after %d audits: %s", self.tier, self.n, reason)

    def stats(self) -> dict[str, Any]:
        """Flat counters and gauges under the tier's name."""
        low, high = self.kl_bounds()
        found = {
            "on": self.on,
            "audits": self.n,
            "audits_skipped": self.skipped,
            "kl_mean": self.mean_kl,
            "kl_low": low,
            "kl_high": high,
            "top1_agreement": self.agreed / self.n if self.n else 1.0,
            "flips": self.flips,
        }
        return {f"{self.tier}_{name}": value for name, value in found.items()}

    def kl_bounds(self) -> tuple[float, float]:
        """One-sided 95 % bounds of the mean KL; (0, inf) for fewer than two findings."""
        if self.n < 2:
            return 0.0, math.inf
        variance = max(self._kl[1] - self.n * self.mean_kl**2, 0.0) / (self.n - 1)
        spread = _Z * math.sqrt(variance / self.n)
        return max(self.mean_kl - spread, 0.0), self.mean_kl + spread

    def _fault(self) -> str | None:
        low, high = self.kl_bounds()
        kl = high if self.n >= _FEWEST else low if self.n >= _FEWEST // 3 else 0.0
        if kl > self.kl_budget:
            return f"mean KL {self.mean_kl:.4f} (bound {kl:.4f}) passes its budget of {self.kl_budget:g}"
        flips = flip_low(self.n, self.flips)
        if self.n >= needed(self.flip_budget):
            flips = flip_high(self.n, self.flips)
        if flips > self.flip_budget:
            return f"{self.flips} flips in {self.n} (bound {flips:.4f}) pass their budget of {self.flip_budget:g}"
        return None


def needed(budget: float) -> float:
    """Findings without a flip after which the upper bound is within the budget."""
    return math.inf if budget <= 0 else math.ceil(math.log(0.05) / math.log1p(-budget)) if budget < 1 else 1


def flip_high(n: int, k: int) -> float:
    """Clopper-Pearson 95 % upper bound of a rate with k of n: P(Bin(n, p) <= k) = 0.05."""
    return 1.0 if k >= n else _solve(lambda p: _at_most(n, k, p) <= 0.05)


def flip_low(n: int, k: int) -> float:
    """Clopper-Pearson 95 % lower bound: P(Bin(n, p) >= k) = 0.05."""
    return 0.0 if k == 0 else _solve(lambda p: 1 - _at_most(n, k - 1, p) >= 0.05)


def _solve(holds: Any) -> float:
    """The least p in [0, 1] from which `holds`, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _at_most(n: int, k: int, p: float) -> float:
    """P(Bin(n, p) <= k)."""
    if p <= 0:
        return 1.0
    if p >= 1:
        return float(k >= n)
    logs = (math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) for i in range(k + 1))
    terms = (c + i * math.log(p) + (n - i) * math.log1p(-p) for i, c in enumerate(logs))
    return min(math.fsum(math.exp(term) for term in terms), 1.0)
