"""Moving KV as placement sees it: its seconds, when it pays, and what leaving a tree's home costs beside it."""

from __future__ import annotations

from dataclasses import dataclass

MU = 12.0
MU_FAST_TRANSFER = 4.0
"""Price of leaving home, in prefills of the whole path: KV left behind is missed by every later branch."""
_FAST_TOKENS_PER_S = 1e5


@dataclass(frozen=True, slots=True)
class Link:
    """Speed of moving KV between engines, as measured: seconds before the first token, tokens a second."""

    latency_s: float
    tokens_per_s: float

    def seconds(self, tokens: int) -> float:
        return self.latency_s + tokens / self.tokens_per_s

    def pays(self, tokens: int, prefill_rate: float) -> bool:
        """Whether moving the KV of so many tokens is faster than prefilling them."""
        return tokens > 0 and self.seconds(tokens) < tokens / prefill_rate

    def break_even(self, prefill_rate: float) -> float:
        """Tokens from which moving is faster than prefilling at `prefill_rate`; infinite if it never is."""
        gain = 1 / prefill_rate - 1 / self.tokens_per_s
        return self.latency_s / gain if gain > 0 else float("inf")


def price_of_leaving(link: Link | None) -> float:
    """mu of `actors.placement`: lower where KV can follow fast."""
    return MU_FAST_TRANSFER if link is not None and link.tokens_per_s >= _FAST_TOKENS_PER_S else MU
