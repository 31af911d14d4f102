"""Which ASKS tiers an engine may use, and within which bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

TIERS = ("shifted", "semantic")
"""Tiers that approximate; `exact`, `layout` and `merged` change no numbers."""

PAPER_TAU: Mapping[str, float] = MappingProxyType(
    {"qwen2.5-7b": 0.82, "llama-3-8b": 0.82, "mistral-7b": 0.80, "falcon3-7b": 0.80, "falcon3-10b": 0.80}
)
PAPER_TAU_OTHERS = 0.75
PAPER_ALPHA = 1.5


@dataclass(frozen=True, slots=True)
class Asks:
    """Tiers that approximate, each off unless asked for. Shares are in [0, 1], KL in nats.

    ratio: share of a shifted chunk's tokens computed anew, the most deviating ones; first: tokens at its start that
    always are; least: tokens a chunk must have. tau: least sigma at which a root's KV is substituted, "paper" for the
    paper's value (`paper_tau`); None never does. audit: share of reuses also computed exactly, drawn by seed.
    kl_budget, flip_budget: what the audit allows (mean KL(exact || reused); share of decisive changes).
    """

    shifted: bool = False
    semantic: bool = False
    ratio: float = 0.15
    first: int = 8
    least: int = 64
    tau: float | str | None = None
    alpha: float = PAPER_ALPHA
    audit: float = 0.05
    seed: int = 0
    kl_budget: float = 0.02
    flip_budget: float = 0.01

    def __post_init__(self) -> None:
        for name in ("ratio", "audit", "flip_budget"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"asks option {name} must be in [0, 1], got {getattr(self, name)!r}")
        if self.first < 0 or self.kl_budget < 0 or self.least < 2 * WINDOW:
            raise ValueError(
                f"asks options need first >= 0, kl_budget >= 0 and least >= {2 * WINDOW}; "
                f"got {self.first}, {self.kl_budget} and {self.least}"
            )
        if isinstance(self.tau, str) and self.tau != "paper":
            raise ValueError(f"asks option tau must be a number in [-1, 1], 'paper' or None, got {self.tau!r}")
        if not isinstance(self.tau, str | None) and not -1 <= self.tau <= 1:
            raise ValueError(f"asks option tau must be a number in [-1, 1], 'paper' or None, got {self.tau!r}")
        if self.semantic and self.tau is None:
            raise ValueError("asks tier 'semantic' needs tau: a number from a calibration record, or 'paper'")

    @property
    def tiers(self) -> frozenset[str]:
        """The tiers that are on."""
        return frozenset(name for name in TIERS if getattr(self, name))

    def threshold(self, model: str) -> float:
        """tau for a model of this name."""
        if isinstance(self.tau, str):
            return paper_tau(model)
        return float("inf") if self.tau is None else self.tau


WINDOW = 32
"""Tokens hashed together; a chunk of twice as many always holds one whole window of any alignment."""


def paper_tau(model: str) -> float:
    """tau of the paper (arXiv 2606.09937) for a model name: 0.82, 0.80 or, for others, 0.75."""
    name = model.lower().replace("meta-", "").replace("_", "-")
    return next((tau for known, tau in PAPER_TAU.items() if known in name), PAPER_TAU_OTHERS)


def refused(wanted: Iterable[str] | None, given: frozenset[str]) -> str | None:
    """Why a call may not ask for these tiers, or None."""
    for name in wanted or ():
        if name not in TIERS:
            return f"unknown ASKS tier {name!r}; choices: {', '.join(TIERS)}"
        if name not in given:
            on = ", ".join(sorted(given)) or "none"
            return f"ASKS tier {name!r} is off in this engine's configuration; tiers that are on: {on}"
    return None
