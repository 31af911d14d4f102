"""The tiers of one engine that approximate, as its scheduler uses them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.admission import Admission, Claim
from engine.asks.audit import Audit
from engine.asks.options import Asks
from engine.asks.roots import Roots
from engine.asks.rope import unsupported
from engine.asks.semantic import Semantic
from engine.asks.shifted import Shifted
from engine.fused import FusedModel
from engine.packed import Forward


@dataclass(slots=True)
class Tiers:
    """shifted, semantic: None where they are off."""

    shifted: Shifted | None
    semantic: Semantic | None
    roots: Roots

    @classmethod
    def of(cls, options: Asks, model: str, forward: Forward, admission: Admission) -> Tiers:
        """ValueError, naming the tier and the reason, for a model it cannot serve. model: its name, for presets."""
        check(options, forward.model)
        shifted = semantic = None
        if options.shifted:
            shifted = Shifted(options, forward, admission, _audit(options, "shifted"))
        if options.semantic:
            tau = options.threshold(model)
            semantic = Semantic(options, tau, forward, admission, _audit(options, "semantic"))
        return cls(shifted, semantic, Roots(admission.tree))

    @property
    def on(self) -> frozenset[str]:
        """Tiers of the configuration, whatever the audit has made of them."""
        return frozenset(name for name in ("shifted", "semantic") if getattr(self, name) is not None)

    def chosen(self, wanted: Iterable[str] | None) -> frozenset[str]:
        """Tiers of one call: those it names, or all that are on."""
        return self.on if wanted is None else frozenset(wanted)

    def shift(self, tiers: frozenset[str], claim: Claim, following: int) -> int | None:
        """See `Shifted.compute`."""
        if self.shifted is None or "shifted" not in tiers:
            return None
        return self.shifted.compute(claim, following)

    def awaits(self, tiers: frozenset[str], path: tuple[int, ...], computing: Sequence[tuple[int, ...]]) -> bool:
        """See `Shifted.awaits`."""
        return self.shifted is not None and "shifted" in tiers and self.shifted.awaits(path, computing)

    def substitute(self, tiers: frozenset[str], claim: Claim, path: tuple[int, ...]) -> bool:
        """See `Semantic.substitute`."""
        return self.semantic is not None and "semantic" in tiers and self.semantic.substitute(claim, path)

    def note_root(self, path: tuple[int, ...], claim: Claim) -> None:
        """The KV of a prompt is held."""
        if claim.approximate or not claim.stored:
            return
        self.roots.note(claim.pin.key, path)
        if self.semantic is not None:
            self.semantic.note_root(path, claim.pin)

    def stats(self) -> dict[str, Any]:
        return {key: value for tier in (self.shifted, self.semantic) if tier for key, value in tier.stats().items()}


def check(options: Asks, model: Any) -> None:
    """ValueError if a tier that is on cannot serve this model."""
    if options.shifted and (reason := unsupported(model)) is not None:
        raise ValueError(f"asks tier 'shifted' does not serve this model: {reason}")
    if options.semantic and not isinstance(model, FusedModel):
        raise ValueError(f"asks tier 'semantic' does not serve {type(model).__name__}: its layers are not our own")


def _audit(options: Asks, tier: str) -> Audit:
    return Audit(tier, options.audit, options.seed, options.kl_budget, options.flip_budget)
