"""What is simulated: how many trees of which shape, on how many engines."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Regime:
    """trees of beam b with k next steps a node; prompt and step in tokens. in_flight: trees at once (None: all).

    speeds: engines are between 1 and `speeds` times as fast as the slowest. shared: tokens that all prompts begin with.
    """

    name: str
    trees: int
    b: int = 4
    k: int = 4
    prompt: int = 1500
    step: int = 120
    in_flight: int | None = None
    speeds: float = 1.0
    shared: int = 0


REGIMES = {
    regime.name: regime
    for regime in (
        Regime("A", 256),
        Regime("B", 16, b=8, k=8),
        Regime("D", 256, prompt=6000, step=30),
        Regime("E", 384, prompt=3000, step=60, in_flight=96),
        Regime("F", 256, speeds=2.0),
    )
}


def grown(regime: Regime, engines: int) -> Regime:
    """The same load for each engine as the regime puts on 64, for more or fewer of them."""
    in_flight = None if regime.in_flight is None else max(regime.in_flight * engines // 64, 1)
    return replace(regime, trees=max(regime.trees * engines // 64, 1), in_flight=in_flight)
