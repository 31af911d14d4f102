"""The gate before verification: asks the rule, audits a share of its skips, and switches it off when audits say so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from search.calibration.alarm import BettingAlarm
from search.cgee.base import Skip, SkipReport, SkipRule, Wave
from search.cgee.decision import answer_groups, flipped, select


@dataclass(frozen=True, slots=True)
class Ruling:
    """What holds for one wave. skip: the rule's decision. audited: it is verified all the same. foreign: why the rule
    does not apply to such waves. booked: the alarm has counted it as no loss."""

    skip: Skip | None = None
    audited: bool = False
    foreign: tuple[str, ...] = ()
    booked: bool = False


class Gate:
    """One rule in use. Share it between searches, so that their audits add up; calls must not overlap.

    audit_share: chance that a decision is audited. Its loss is 0 where the rule does not skip, so the alarm watches the
    rate a calibration bounds: losses per decision. seed: of the draws, which depend on (seed, wave id) only.
    """

    def __init__(
        self, rule: SkipRule, alarm: BettingAlarm | None = None, audit_share: float = 0.0, seed: int = 0
    ) -> None:
        if not 0.0 <= audit_share <= 1.0:
            raise ValueError(f"cgee audit share must be in [0, 1], got {audit_share!r}")
        self.rule = rule
        self.alarm = alarm
        self.audit_share = audit_share
        self.seed = seed

    def fresh(self) -> Gate:
        """The same rule and draws, with an alarm that has seen nothing."""
        alarm = None if self.alarm is None else BettingAlarm(self.alarm.rate, self.alarm.level)
        return Gate(self.rule, alarm, self.audit_share, self.seed)

    def restore(self, report: SkipReport) -> None:
        """Book what an earlier process's searches have told the alarm; each search once."""
        if self.alarm is not None:
            self.alarm.restore(report.trials, report.flips, report.off)

    @property
    def off(self) -> str | None:
        """Why the rule is switched off, or None."""
        if self.alarm is None or not self.alarm.raised:
            return None
        alarm = self.alarm
        return (
            f"cgee rule {self.rule.name!r} switched off: {alarm.losses} flips in {alarm.trials} audited decisions "
            f"speak against a rate of {alarm.rate:g} (level {alarm.level:g})"
        )

    def consult(self, wave: Wave) -> Ruling:
        """Whether to verify this wave."""
        if foreign := self.rule.foreign(wave):
            return Ruling(foreign=foreign)
        if self.off:
            return Ruling()
        skip = self.rule.decide(wave)
        if self.alarm is None or not self._drawn(wave.id):
            return Ruling(skip)
        if skip is None:
            self.alarm.observe(False)
        return Ruling(skip, audited=skip is not None, booked=skip is None)

    def audit(self, wave: Wave, skip: Skip, scores: Sequence[float | None]) -> bool | None:
        """Compare an audited skip with the verifier's scores and book it: whether it flips the selection.

        None, and nothing is booked, if a branch has no score.
        """
        if self.alarm is None or None in scores:
            return None
        full, chosen = select(wave.contenders, scores), select(wave.contenders, skip.standings)
        flip = flipped(answer_groups(wave.contenders), full, chosen)
        self.alarm.observe(flip)
        return flip

    def _drawn(self, wave_id: str) -> bool:
        digest = blake2b(f"{self.seed}\0{wave_id}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") < self.audit_share * 2**64
