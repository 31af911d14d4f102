"""Verify-skip rules: the paper's table, agreement, the calibrated rule's borders, and the registry."""

from dataclasses import replace

import pytest

from search.cgee import registry
from search.cgee.agreement import Agreement
from search.cgee.base import Contender, Draw, Wave
from search.cgee.calibrated import Calibrated
from search.cgee.off import Off
from search.cgee.paper import Paper
from search.types import Boundary, Expansion, Sampling
from tests.search.records import DRAW, record


def wave(*confidences: float | None, draw: Draw | None = None) -> Wave:
    return Wave("w", tuple(Contender(f"r.{i}", c) for i, c in enumerate(confidences)), draw=draw)


def answers(*texts: str, finished: tuple[str, ...] = (), counts: tuple[int, ...] = ()) -> Wave:
    """Branches by answer; "" is one that is not finished."""

    def contender(text: str, name: str, count: int = 1) -> Contender:
        return Contender(name, 0.5, bool(text), f"Answer: {text}" if text else "so far", count=count)

    counts = counts or (1,) * len(texts)
    return Wave(
        "w",
        tuple(contender(text, f"r.{i}", n) for i, (text, n) in enumerate(zip(texts, counts, strict=True))),
        tuple(contender(text, f"r.0.{i}") for i, text in enumerate(finished)),
    )


# -- paper ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("confidences", "skips"),
    [
        ((0.70, 0.63, 0.1), True),  # both clauses
        ((0.75, 0.70), False),  # first: gap 0.05; second: rel 0.067
        ((0.69, 0.62), True),  # second clause alone: top >= 0.63, rel 0.101
        ((0.63, 0.57), True),  # second clause at 0.9 tau_conf, rel 0.095
        ((0.62, 0.10), False),  # below 0.9 tau_conf, however far ahead
        ((0.99, 0.925), True),  # first clause alone: gap 0.065, rel 0.066
        ((0.99, 0.94), False),
        ((0.5, 0.9, 0.7), True),  # order of branches does not matter
        ((0.8, 0.8, 0.1), False),
        ((0.0, 0.0), False),
        ((0.95,), False),  # nothing to be ahead of
        ((), False),
        ((0.95, None), False),  # a confidence is unknown
    ],
)
def test_the_papers_rule(confidences, skips) -> None:
    skip = Paper().decide(wave(*confidences))
    assert (skip is not None) == skips
    if skip is not None:
        assert (skip.rule, skip.standings) == ("paper", confidences)
        assert f"top confidence {max(confidences):.3f}" in skip.reason


def test_the_papers_thresholds_are_the_defaults_and_on_the_grid() -> None:
    assert (Paper().tau_conf, Paper().gap, Paper().rel) == (0.70, 0.06, 0.08)
    grid = Paper.grid()
    assert {"tau_conf": 0.70, "gap": 0.06, "rel": 0.08} in grid
    for name in ("tau_conf", "gap", "rel"):
        values = [candidate[name] for candidate in grid]
        assert values == sorted(values, reverse=True) and len(set(values)) == len(values)


def test_thresholds_bind() -> None:
    first = Paper(tau_conf=0.75, gap=0.25, rel=1.0)
    assert first.decide(wave(0.75, 0.5)) is not None
    assert first.decide(wave(0.75, 0.501)) is None
    second = Paper(tau_conf=0.8, gap=1.0, rel=0.5)
    assert second.decide(wave(0.75, 0.375)) is not None
    assert second.decide(wave(0.71, 0.0)) is None
    assert Paper(tau_conf=0.8, rel=1.0).decide(wave(0.75, 0.1)) is None
    assert Paper(gap=0.5, rel=1.0).decide(wave(0.9, 0.45)) is None
    assert Paper(rel=0.02).decide(wave(0.75, 0.73)) is not None


# -- agreement -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("texts", "finished", "skips"),
    [
        (("12", "12.0", "$12", "12"), (), True),  # 4 of 4: 0.969
        (("12", "12", "12"), (), False),  # 3 of 3: 0.9375
        (("12", "12", "12", "15"), (), False),
        (("12",) * 7 + ("15",), (), True),  # 7 to 1: 0.98
        (("12",) * 6 + ("15", "15"), (), False),  # 6 to 2: 0.91
        (("12", "12", ""), ("12", "12"), True),  # branches finished before count
        (("12", "12", ""), ("15",), False),
        (("", ""), ("12",) * 4, True),  # all is said already
        (("", ""), (), False),
    ],
)
def test_agreement(texts, finished, skips) -> None:
    assert (Agreement().decide(answers(*texts, finished=finished)) is not None) == skips


def test_standings_of_agreement_are_shares_of_votes() -> None:
    skip = Agreement().decide(answers("15", "12", "", "12.0", finished=("12",) * 6))
    assert skip is not None
    assert skip.standings == pytest.approx((1 / 9, 8 / 9, 0.0, 8 / 9))
    assert "8 of 9 finished branches say 12" in skip.reason


def test_equal_samples_count_as_often_as_they_were_drawn() -> None:
    assert Agreement().decide(answers("12", counts=(4,))) is not None
    assert Agreement().decide(answers("12", counts=(3,))) is None


def test_agreement_binds_at_its_threshold() -> None:
    assert Agreement(agree_at=0.93).decide(answers("12", "12", "12")) is not None
    assert Agreement(agree_at=0.97).decide(answers(*["12"] * 4)) is None


# -- calibrated ----------------------------------------------------------------------------------------------------
def test_the_calibrated_rule_uses_the_records_thresholds() -> None:
    rule = Calibrated(record=record())
    assert rule.decide(wave(0.75, 0.65)) is None
    skip = rule.decide(wave(0.85, 0.60))
    assert skip is not None and skip.rule == "calibrated" and skip.reason.startswith("paper: top confidence")
    assert (rule.scope, rule.needs) == ("wave", {"confidence"})
    agreement = Calibrated(record=record(rule="agreement", thresholds={"agree_at": 0.9}))
    assert (agreement.scope, agreement.needs) == ("tree", frozenset())


@pytest.mark.parametrize("missing", [None, record(thresholds=None, k=3, flips=3)])
def test_without_accepted_thresholds_nothing_is_skipped(missing) -> None:
    rule = Calibrated(record=missing)
    assert rule.decide(wave(1.0, 0.0, draw=DRAW)) is None
    assert rule.foreign(wave(1.0, 0.0, draw=DRAW)) == (() if missing else ("no calibration record is given",))


def test_waves_drawn_otherwise_are_foreign_and_the_fields_are_named() -> None:
    rule = Calibrated(record=record())
    assert rule.foreign(wave(0.9, 0.1, draw=DRAW)) == ()
    other = replace(DRAW, branches=6, depth=1, whole=False)
    assert rule.foreign(wave(0.9, 0.1, draw=other)) == (
        "branches: record 8, here 6",
        "depth: record 0, here 1",
        "whole: record True, here False",
    )
    assert rule.foreign(wave(0.9, 0.1)) == ("its branches are drawn in different ways",)


def order(node: str = "r", n: int = 4, hint: str = "", **sampling) -> Expansion:
    return Expansion(
        f"p/{node}/{hint}{n}", "p", node, ((1,),), n, Sampling(boundary=Boundary.none(), **sampling), hint=hint
    )


def test_the_draw_of_a_wave() -> None:
    assert Draw.of([order(), order(hint="be brief")]) == Draw(8, 0, 0.8, 0.95, 96, True, 1)
    assert Draw.of([order("r.0.1"), order("r.1.0")]) == Draw(8, 2, 0.8, 0.95, 96, True)
    assert Draw.of([replace(order(), sampling=Sampling())]) == Draw(4, 0, 0.8, 0.95, 96, False)
    assert Draw.of([order(stop=("\n",))]).whole is False
    assert Draw.of([order(), order("r.0")]) is None
    assert Draw.of([order(), order(temperature=0.5)]) is None


# -- registry ------------------------------------------------------------------------------------------------------
def test_rules_by_name() -> None:
    assert registry.names() == ["agreement", "calibrated", "off", "paper"]
    assert registry.create("off") == Off()
    assert registry.create("paper", gap=0.1) == Paper(gap=0.1)
    assert {registry.create(name).name for name in registry.names()} == set(registry.names())
    assert Off().decide(wave(1.0, 0.0)) is None


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: registry.create("papr"), r"unknown cgee rule 'papr'; choices: agreement, calibrated, off, paper"),
        (lambda: registry.create("paper", tau=1), r"no option 'tau'; choices: gap, rel, tau_conf"),
        (lambda: registry.create("off", tau=1), "choices: none"),
        (lambda: registry.create("paper", gap=-0.1), r"gap must be a number in \[0, 1\], got -0.1"),
        (lambda: registry.create("paper", tau_conf="x"), "tau_conf must be a number"),
        (lambda: registry.create("agreement", agree_at=0.5), "agree_at must be in"),
        (lambda: registry.grid("off"), "cannot be calibrated; choices: agreement, paper"),
    ],
)
def test_unknown_names_and_bad_thresholds_are_refused_with_the_choices(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("name", registry.CALIBRATABLE)
def test_every_candidate_of_a_grid_is_a_rule(name: str) -> None:
    rules = [registry.create(name, **thresholds) for thresholds in registry.grid(name)]
    assert len(set(rules)) == len(rules) > 8
