"""Audits of skips: a seeded share is verified all the same, flips are counted, and the alarm switches the rule off."""

import pytest

from engine.base import Branch
from engine.scripted import ScriptedEngine
from search.calibration.alarm import BettingAlarm
from search.cgee.base import Contender, Draw, Wave
from search.cgee.calibrated import Calibrated
from search.cgee.gate import Gate
from search.cgee.paper import Paper
from search.types import Problem
from tests.search.records import record

ONE_WAVE = {"k": 2, "b": 1, "max_depth": 1}


def wave(name: str = "w", top: float = 0.9) -> Wave:
    return Wave(name, (Contender("r.0", top, True, "Answer: 1"), Contender("r.1", 0.5, True, "Answer: 2")))


def engine(confidence: float = 0.9, judged: float = 0.1) -> ScriptedEngine:
    """1 is the confident branch, 2 the other one; the verifier gives 1 the score `judged` and 2 a half."""
    texts = [("Answer: 1", confidence), ("Answer: 2", 0.5)]

    def script(path, served):
        text, p = texts[served % 2]
        return Branch(tuple(text.encode()), text, "eos", confidence=p)

    return ScriptedEngine(script, judge=lambda path, q: judged if path[-1].endswith("1") else 0.5)


def problems(count: int) -> list[Problem]:
    return [Problem(f"Problem {i}?") for i in range(count)]


# -- the gate ------------------------------------------------------------------------------------------------------
def test_the_share_of_audits_is_drawn_by_seed_and_wave() -> None:
    names = [f"0/p{i}/r/0" for i in range(4000)]

    def audited(seed: int, share: float) -> list[bool]:
        gate = Gate(Paper(), BettingAlarm(0.5), share, seed)
        return [gate.consult(wave(name)).audited for name in names]

    drawn = audited(0, 0.05)
    assert 140 <= sum(drawn) <= 260  # 200 expected; outside with probability below 1e-4
    assert drawn == audited(0, 0.05) != audited(1, 0.05)
    assert not any(audited(0, 0.0)) and all(audited(0, 1.0))


def test_a_decision_the_rule_does_not_skip_is_audited_as_no_loss() -> None:
    """The calibration bounds losses per decision, so all decisions are drawn from, and those cost nothing."""
    gate = Gate(Paper(), BettingAlarm(0.5), 1.0)
    assert gate.consult(wave(top=0.51)).skip is None
    assert (gate.alarm.trials, gate.alarm.losses) == (1, 0)
    ruling = gate.consult(wave())
    assert ruling.audited and gate.alarm.trials == 1
    assert gate.audit(wave(), ruling.skip, (0.2, 0.6)) is True
    assert gate.audit(wave(), ruling.skip, (0.6, 0.2)) is False
    assert (gate.alarm.trials, gate.alarm.losses) == (3, 1)


def test_an_audit_without_a_score_is_not_booked() -> None:
    gate = Gate(Paper(), BettingAlarm(0.5), 1.0)
    ruling = gate.consult(wave())
    assert gate.audit(wave(), ruling.skip, (0.2, None)) is None
    assert gate.alarm.trials == 0


def test_foreign_waves_are_neither_skipped_nor_audited() -> None:
    gate = Gate(Calibrated(record=record()), BettingAlarm(0.01), 1.0)
    ruling = gate.consult(wave())
    assert ruling.foreign and ruling.skip is None and gate.alarm.trials == 0
    draw = Draw(8, 0, 0.8, 0.95, 256, whole=True)
    ruling = gate.consult(Wave("w", wave().contenders, draw=draw))
    assert not ruling.foreign and ruling.audited


def test_without_an_alarm_nothing_is_audited() -> None:
    gate = Gate(Paper(), audit_share=1.0)
    assert gate.consult(wave()).audited is False
    assert gate.off is None


def test_a_raised_alarm_switches_the_rule_off() -> None:
    gate = Gate(Paper(), BettingAlarm(0.01), 1.0)
    while not gate.off:
        gate.audit(wave(), gate.consult(wave()).skip, (0.1, 0.5))
    assert gate.consult(wave()).skip is None
    assert "cgee rule 'paper' switched off" in gate.off and "against a rate of 0.01" in gate.off


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_is_a_share(share: float) -> None:
    with pytest.raises(ValueError, match="audit share"):
        Gate(Paper(), BettingAlarm(0.1), share)


# -- in searches ---------------------------------------------------------------------------------------------------
def test_an_audited_skip_is_decided_by_the_verifier_and_reported(lab) -> None:
    one, events = lab(engine()), []
    gate = Gate(Paper(), BettingAlarm(0.9), 1.0)
    found = one.solve("tot", gate=gate, options=ONE_WAVE, on_event=events.append)
    assert (found.answer, one.count("scores")) == ("2", 2)
    assert (found.skips.decisions, found.skips.skipped, found.skips.audited, found.skips.flips) == (1, 0, 1, 1)
    assert found.skips.saved_verifications == 0
    assert [event.data for event in events if event.kind == "audit"] == [{"rule": "paper", "flip": True}]
    assert not [event for event in events if event.kind in ("skip", "cgee_off")]


def test_flips_beyond_the_rate_switch_the_rule_off_with_an_event(lab) -> None:
    one, events = lab(engine()), []
    gate = Gate(Paper(), BettingAlarm(0.01), 1.0)
    search = {"gate": gate, "options": ONE_WAVE, "on_event": events.append}
    results = [one.solve("tot", problem, **search) for problem in problems(12)]
    kinds = [event.kind for event in events]
    assert kinds.count("cgee_off") == 1
    audits = kinds.count("audit")
    assert 1 <= audits < 6 and all(found.answer == "2" for found in results)
    assert sum("switched off" in text for found in results for text in found.warnings) == len(results) - audits + 1
    assert [found.skips.audited for found in results] == [1] * audits + [0] * (len(results) - audits)


def test_a_rule_that_agrees_with_the_verifier_stays_on(lab) -> None:
    one = lab(engine(judged=0.9))
    gate = Gate(Paper(), BettingAlarm(0.01), 0.3)
    results = one.solve_all("tot", problems(60), gate=gate, options=ONE_WAVE)
    audited = sum(found.skips.audited for found in results)
    assert not gate.off and 5 < audited < 35
    assert gate.alarm.trials == audited and gate.alarm.losses == 0
    assert one.count("scores") == 2 * audited
    assert sum(found.skips.saved_verifications for found in results) == 2 * (60 - audited)


def test_audits_do_not_depend_on_the_order_of_problems(lab) -> None:
    def audited(order: int) -> list[int]:
        gate = Gate(Paper(), BettingAlarm(0.5), 0.3)
        asked = problems(30)[::order]
        return [found.skips.audited for found in lab(engine(judged=0.9)).solve_all("tot", asked, gate=gate)][::order]

    assert audited(1) == audited(-1)
