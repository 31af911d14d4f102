"""Ensembles of verifiers: how scores are combined, and what members that fail cost."""

import asyncio
import math

import pytest

from engine.scripted import ScriptedEngine
from search.types import Verdict
from search.verifiers.ensemble import Ensemble
from search.verifiers.function import FunctionVerifier
from tests.search.candidates import PROBLEM, command, path, score


def constant(value):
    return FunctionVerifier(lambda problem, text: value)


class Hanging:
    needs = frozenset()

    async def score(self, batch):
        await asyncio.sleep(60)


class Miscounting:
    needs = frozenset({"score"})

    async def score(self, batch):
        return [Verdict(1.0, "m")] * (len(batch) + 1)


@pytest.mark.parametrize(
    ("combine", "weights", "expected"),
    [("mean", (), 0.5), ("mean", (3.0, 1.0, 1.0), 0.38), ("min", (), 0.2), ("max", (), 0.7), ("median", (), 0.6)],
)
def test_members_are_combined(combine, weights, expected):
    members = (constant(0.2), constant(0.6), constant(0.7))
    verdicts = score(Ensemble(members, combine, weights), path("a"), path("b"))
    assert [verdict.score for verdict in verdicts] == pytest.approx([expected] * 2)
    assert [verdict.error for verdict in verdicts] == [None, None]


def test_members_that_fail_are_left_out_and_named():
    """One hangs, one has the wrong count, one gives NaN, one is a process that dies: the rest decides."""
    members = (
        constant(0.4), Hanging(), Miscounting(), constant(float("nan")), constant(0.8),
        command("import os; os.kill(os.getpid(), 11)"),
    )  # fmt: skip
    (verdict,) = score(Ensemble(members, timeout_s=4.0), path("a"))
    assert verdict.score == pytest.approx(0.6)
    for said in ("Hanging did not answer within 4 s", "returned 2 verdicts for 1 paths", "nan", "ended by signal 11"):
        assert said in verdict.error
    assert Ensemble(members).needs == {"score"}


def test_an_ensemble_of_failures_is_an_error():
    (verdict,) = score(Ensemble((Miscounting(), Hanging()), timeout_s=0.1), path("a"))
    assert verdict.score is None and "Miscounting" in verdict.error and "Hanging" in verdict.error


def test_the_search_ends_with_the_right_answer_and_says_what_happened(lab):
    """One never returns, one counts wrong, one dies of a segmentation fault, one gives NaN: the sound one decides."""
    good = FunctionVerifier(lambda problem, text: 0.9 if "42" in text else 0.2)
    segfault = command("import ctypes; ctypes.string_at(0)", workers=4)
    members = (good, Hanging(), Miscounting(), segfault, constant(math.nan))
    found = lab(ScriptedEngine(["Answer: 41", "Answer: 42", "Answer: 43"])).solve(
        "best_of_n", PROBLEM, verifier=Ensemble(members, timeout_s=4.0), options={"samples": 3}
    )
    assert (found.answer, found.correct, found.error) == ("42", True, None)
    (warning,) = found.warnings
    assert all(
        said in warning for said in ("Hanging did not answer", "Miscounting returned", "signal 11", "returned nan")
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"members": ()}, "at least 1 verifier"),
        ({"combine": "vote"}, "must be one of mean, min, max, median, got 'vote'"),
        ({"weights": (1.0,)}, r"must be 2 positive numbers, one a verifier, got \(1.0,\)"),
        ({"combine": "min", "weights": (1.0, 1.0)}, "weights go with combine 'mean', got 'min'"),
    ],
)
def test_an_ensemble_is_checked(options, message):
    with pytest.raises(ValueError, match=message):
        Ensemble(**{"members": (constant(0.1), constant(0.2)), **options})
