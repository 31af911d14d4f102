"""Decisions of a calibration: what is lost, counted once a problem, and concluded from."""

import json
from dataclasses import replace

import pytest

from engine.base import Branch
from engine.scripted import ScriptedEngine
from engine.simulated import SimulatedEngine
from search.calibration.conclude import Question, TooFewDecisionsError, conclude, examine, require_no_repeats
from search.calibration.decisions import Branch as Judged
from search.calibration.decisions import Decision, count, decide, text_key
from search.calibration.record import RecordError, Setting
from search.cgee import registry
from search.cgee.base import Draw
from search.types import Boundary, Problem, Sampling

SETTING = Setting("m", "float32", "t", "general", "self_evaluation")
DRAW = Draw(8, 0, 0.8, 0.95, 256, True)
CANDIDATES = len(registry.grid("agreement"))


def made(name: str, full: int, chosen: int | None, right: tuple[bool | None, ...] = (True, False, False)) -> Decision:
    """Three branches with the answers 1, 2, 2; every candidate of `agreement` selects `chosen`."""
    branches = tuple(Judged(a, g, True, 1, 0.5, 0.5, ok) for a, g, ok in zip("122", (0, 1, 1), right, strict=True))
    return Decision(name, f"text of {name}", branches, full, {"agreement": (chosen,) * CANDIDATES}, 30)


@pytest.mark.parametrize(
    ("full", "chosen", "flip", "harm", "gain"),
    [
        (0, None, False, False, False),
        (0, 0, False, False, False),
        (0, 1, True, True, False),
        (1, 0, True, False, True),
        (1, 2, False, False, False),  # another branch with the same answer
    ],
)
def test_losses(full, chosen, flip, harm, gain) -> None:
    decision = made("p", full, chosen)
    assert (decision.lost("agreement", 0, "flip"), decision.lost("agreement", 0, "harm")) == (flip, harm)
    assert decision.gained("agreement", 0) == gain
    counts = count([decision, made("q", 0, None)], "agreement", 3)
    assert (counts.n, counts.skips, counts.flips, counts.harms, counts.gains) == (
        2,
        chosen is not None,
        flip,
        harm,
        gain,
    )


def test_a_decision_is_made_of_a_searchs_first_wave(lab) -> None:
    texts = [("Answer: 4", 0.9), ("Answer: 5", 0.6), ("Answer: 4.0", 0.5)]

    def script(path, served):
        text, confidence = texts[served]
        return Branch(tuple(text.encode()), text, "eos", confidence=confidence)

    engine = ScriptedEngine(script, judge=lambda path, q: 0.8 if "5" in path[-1] else 0.4)
    problem = Problem("What is 2 + 2?", reference="#### 4")
    found = lab(engine).solve("tot", problem, options={"k": 3, "b": 1, "max_depth": 1}, merge=False)
    decision = decide(found)
    assert [b.answer for b in decision.branches] == ["4", "5", "4.0"]
    assert [b.group for b in decision.branches] == [0, 1, 0]
    assert [b.correct for b in decision.branches] == [True, False, True]
    assert [(b.score, b.confidence) for b in decision.branches] == [(0.4, 0.9), (0.8, 0.6), (0.4, 0.5)]
    assert found.node_id == "r.1" and decision.full == 1
    at = [dict(candidate) for candidate in registry.grid("paper")].index({"tau_conf": 0.70, "gap": 0.06, "rel": 0.08})
    assert decision.choices["paper"][at] == 0 and decision.choices["paper"][0] is None
    assert set(decision.choices["agreement"][:-4]) == {None}  # 2 to 1 is no certainty
    assert decision.lost("paper", at, "flip") and not decision.lost("paper", at, "harm")
    assert decision.gained("paper", at)
    assert decision.verified == found.cost.verified > 0


def test_a_decision_survives_json(lab) -> None:
    whole = Sampling(boundary=Boundary.none(), max_tokens=256)
    found = lab(SimulatedEngine()).solve("tot", options={"k": 8, "b": 1, "max_depth": 1}, sampling=whole)
    decision = decide(found)
    row = json.loads(json.dumps(decision.to_json()))
    assert Decision.from_json(row, "row 1") == decision
    with pytest.raises(RecordError, match="row 1: missing 'full'"):
        Decision.from_json({k: v for k, v in row.items() if k != "full"}, "row 1")
    with pytest.raises(RecordError, match=r"row 1, branch: unknown 'x'"):
        Decision.from_json({**row, "branches": [{**row["branches"][0], "x": 1}]}, "row 1")


def test_unverified_and_blank_searches_are_no_decisions(lab) -> None:
    bad = lab(SimulatedEngine()).solve("tot", verifier=lambda p, t: 2.0, options={"max_depth": 1})
    with pytest.raises(ValueError, match="not every branch was verified"):
        decide(bad)
    with pytest.raises(ValueError, match="every branch was blank"):
        decide(lab(ScriptedEngine([""])).solve("tot"))


def many(n: int, losses: int = 0) -> list[Decision]:
    return [made(str(i), 0, 1 if i < losses else 0) for i in range(n)]


def concluded(question: Question, decisions: list[Decision]):
    return conclude(question, decisions, SETTING, DRAW, "2026-01-01", "python -m orchestrator calibrate")


@pytest.mark.parametrize(("alpha", "needed"), [(0.05, 59), (0.02, 149), (0.01, 299), (0.005, 598)])
def test_too_few_decisions_are_refused_with_the_needed_n(alpha: float, needed: int) -> None:
    question = Question(alpha=alpha)
    with pytest.raises(TooFewDecisionsError, match=f"{needed - 1} decisions are too few.*at least {needed}") as few:
        concluded(question, many(needed - 1))
    assert few.value.needed == needed
    record = concluded(question, many(needed))
    assert record.thresholds == registry.grid("agreement")[-1]
    assert (record.n, record.k, record.skips, record.flips, record.harms) == (needed, 0, needed, 0, 0)


def test_losses_end_the_sequence() -> None:
    record = concluded(Question(), many(300, losses=1))
    assert (record.thresholds, record.k, record.flips, record.harms) == (None, 1, 1, 1)
    mixed = [made(str(i), 0, 0) for i in range(299)]
    late = replace(made("late", 0, None), choices={"agreement": (None,) * 5 + (1,) * (CANDIDATES - 5)})
    record = concluded(Question(), [*mixed, late])
    assert record.thresholds == registry.grid("agreement")[4]
    assert [test.accepted for _, test in examine(Question(), [*mixed, late])] == [True] * 5 + [False] * (CANDIDATES - 5)


def test_harm_counts_only_flips_away_from_a_right_branch() -> None:
    wrong = [made(str(i), 0, 1, right=(False, False, False)) for i in range(300)]
    record = concluded(Question(loss="harm"), wrong)
    assert (record.k, record.flips, record.harms) == (0, 300, 0)
    assert record.thresholds is not None
    unknown = [made(str(i), 0, 1, right=(None, None, None)) for i in range(300)]
    with pytest.raises(ValueError, match="'harm' needs the right answer"):
        concluded(Question(loss="harm"), unknown)
    assert concluded(Question(), [made(str(i), 0, 0, (None,) * 3) for i in range(300)]).harms is None


def test_a_problem_counts_once() -> None:
    decisions = many(300)
    with pytest.raises(ValueError, match="id '0' is there more than once"):
        concluded(Question(), [*decisions, made("0", 0, 0)])
    with pytest.raises(ValueError, match="text 'text of 0' is there more than once"):
        require_no_repeats([*decisions, replace(made("x", 0, 0), text="text of 0")])
    assert text_key(Problem("a  b\n")) == text_key(Problem(" a b", id="other")) != text_key(Problem("a c"))
