"""A rule with the thresholds of a calibration record, for waves drawn as those of the calibration."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from search.calibration.record import CalibrationRecord, differences
from search.cgee import registry
from search.cgee.base import Rule, Scope, Skip, SkipRule, Wave
from search.cgee.off import Off


@dataclass(frozen=True, kw_only=True)
class Calibrated(Rule):
    """Without a record, or with one that accepted no threshold, nothing is skipped.

    The record's setting is checked by whoever knows the model (`CalibrationRecord.require`); how branches were drawn is
    checked here, wave by wave.
    """

    name: ClassVar[str] = "calibrated"
    record: CalibrationRecord | None = None
    _inner: SkipRule = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_inner", _rule_of(self.record))

    @property
    def scope(self) -> Scope:
        return self._inner.scope

    @property
    def needs(self) -> frozenset[str]:
        return self._inner.needs

    def foreign(self, wave: Wave) -> tuple[str, ...]:
        if self.record is None:
            return ("no calibration record is given",)
        if wave.draw is None:
            return ("its branches are drawn in different ways",)
        return differences(self.record.draw, wave.draw)

    def decide(self, wave: Wave) -> Skip | None:
        skip = self._inner.decide(wave)
        return replace(skip, rule=self.name, reason=f"{skip.rule}: {skip.reason}") if skip else None


def _rule_of(record: CalibrationRecord | None) -> SkipRule:
    if record is None or record.thresholds is None:
        return Off()
    return registry.create(record.rule, **record.thresholds)
