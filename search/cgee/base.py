"""CGEE level 1, verify-skip: what a rule sees of a wave, and what it decides. Rules have no state; a gate has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal, Protocol

from search.answers import extract
from search.types import Boundary, Expansion

Scope = Literal["wave", "tree"]


@dataclass(frozen=True)
class Contender:
    """One branch of a wave, before verification. count: equal samples it stands for. text: the whole path's."""

    node_id: str
    confidence: float | None = None
    complete: bool = False
    text: str = ""
    kind: str = "auto"
    count: int = 1

    @cached_property
    def answer(self) -> str | None:
        """The answer of a finished branch; read only by rules that need it."""
        return extract(self.text, self.kind) if self.complete and self.text.strip() else None


@dataclass(frozen=True, slots=True)
class Draw:
    """How the branches of a wave were drawn: a calibration holds for waves drawn alike.

    branches: samples asked for (B), equal and blank ones included. depth: of the nodes they continue. whole: drawn to
    the model's end, without step boundaries. hints: prompt variants other than the plain prompt. merged: siblings that
    say the same were made one.
    """

    branches: int
    depth: int
    temperature: float
    top_p: float
    max_tokens: int
    whole: bool
    hints: int = 0
    merged: bool = False

    @classmethod
    def of(cls, orders: Sequence[Expansion], merged: bool = False) -> Draw | None:
        """The draw of a wave's orders; None if they differ in depth or sampling."""
        depths = {order.node_id.count(".") for order in orders}
        samplings = {order.sampling for order in orders}
        if len(depths) != 1 or len(samplings) != 1:
            return None
        (depth,), (sampling,) = depths, samplings
        whole = sampling.boundary == Boundary.none() and not sampling.stop
        hints = len({order.hint for order in orders} - {""})
        branches = sum(order.n for order in orders)
        return cls(branches, depth, sampling.temperature, sampling.top_p, sampling.max_tokens, whole, hints, merged)


@dataclass(frozen=True)
class Wave:
    """What a rule is asked about: the branches that would be verified now, and those finished before them."""

    id: str
    contenders: tuple[Contender, ...]
    finished: tuple[Contender, ...] = ()
    draw: Draw | None = None


@dataclass(frozen=True, slots=True)
class Skip:
    """Do not verify this wave. standings: a number in [0, 1] a contender, which orders branches skipped by this rule.

    A standing is no score: it is never compared with a verifier's (docs/decisions.md).
    """

    rule: str
    reason: str
    standings: tuple[float, ...]


class SkipRule(Protocol):
    """Decides before each verification whether it can be left out.

    scope: "wave" - the rule orders the branches of one wave, so it serves strategies that compare scores within a wave;
    "tree" - it settles the answer of the whole search, so it serves any strategy. needs: engine capabilities.
    """

    name: ClassVar[str]

    @property
    def scope(self) -> Scope: ...

    @property
    def needs(self) -> frozenset[str]: ...

    def decide(self, wave: Wave) -> Skip | None:
        """None: verify."""
        ...

    def foreign(self, wave: Wave) -> tuple[str, ...]:
        """Why the rule does not apply to such a wave at all; () if it does."""
        ...


class Rule:
    """Base: applies to every wave, needs nothing, orders one wave."""

    name: ClassVar[str] = ""

    @property
    def scope(self) -> Scope:
        return "wave"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    def foreign(self, wave: Wave) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class SkipReport:
    """What CGEE did in one search, in decisions (waves it was asked about) and in verifications (branches).

    by_rule: waves that were not verified. saved_tokens: what the verifier would have fed for them, where it can tell
    beforehand. audited: waves the rule would have skipped, verified all the same. flips: audits in which verification
    selected another branch. trials: decisions booked with the alarm, flips among them. off: the alarm was seen raised.
    """

    decisions: int = 0
    by_rule: Mapping[str, int] = field(default_factory=dict)
    saved_verifications: int = 0
    saved_tokens: int = 0
    audited: int = 0
    flips: int = 0
    trials: int = 0
    off: bool = False

    @property
    def skipped(self) -> int:
        return sum(self.by_rule.values())

    def __add__(self, other: SkipReport) -> SkipReport:
        return SkipReport(
            self.decisions + other.decisions,
            Counter(self.by_rule) + Counter(other.by_rule),
            self.saved_verifications + other.saved_verifications,
            self.saved_tokens + other.saved_tokens,
            self.audited + other.audited,
            self.flips + other.flips,
            self.trials + other.trials,
            self.off or other.off,
        )

    def to_json(self) -> dict[str, object]:
        return {
            "decisions": self.decisions,
            "skipped": self.skipped,
            "by_rule": dict(self.by_rule),
            "saved_verifications": self.saved_verifications,
            "saved_tokens": self.saved_tokens,
            "audited": self.audited,
            "flips": self.flips,
            "trials": self.trials,
            "off": self.off,
        }
