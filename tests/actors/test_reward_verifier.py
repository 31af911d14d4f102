"""The verifier by reward models: whatever a model does, each path has one verdict with a sound score or the reason."""

import asyncio
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from actors.handles import EngineDownError, EngineFailedError
from actors.reward import InlineReward, RewardSpec
from actors.reward_verifier import RewardVerifier
from engine.base import Usage
from engine.scripted import ScriptedEngine
from engine.solution import RewardQuery, Rewards
from search.aggregation import path_score
from search.ports import Candidate
from search.types import Problem
from search.verifiers.cached import Cached
from search.verifiers.ensemble import Ensemble
from search.verifiers.function import FunctionVerifier
from tests.search.conftest import Lab

GOOD = RewardSpec("good", "steps", factory=lambda: Scripted(lambda q: [0.5 + len(s) / 100 for s in q.steps]))


class Scripted:
    """values(query) -> the values of its steps."""

    def __init__(self, values: Callable[[RewardQuery], Sequence[float]]) -> None:
        self.values = values
        self.calls: list[list[RewardQuery]] = []

    def score(self, queries):
        self.calls.append(list(queries))
        return [Rewards(tuple(self.values(query)), Usage(prefilled=3, scored=5)) for query in queries]

    def stats(self):
        return {"calls": len(self.calls)}


def spec(values, reading="steps") -> RewardSpec:
    return RewardSpec("scripted", reading, factory=lambda: Scripted(values))


def path(*steps: str, problem: str = "What is 6 * 7?", complete: bool = True) -> Candidate:
    return Candidate(Problem(problem), "r.0", ((1,),), steps, complete)


def score(verifier, *batch: Candidate):
    return asyncio.run(verifier.score(batch))


@pytest.mark.parametrize("rule", ["last", "min", "prod", "mean", "sum_logprob"])
def test_step_scores_become_one_by_the_rule_whatever_the_length(rule):
    verdicts = score(RewardVerifier(GOOD, rule), path("a"), path("a", "bbb", "cc"))
    assert verdicts[0].score == pytest.approx(path_score([0.51], rule))
    assert verdicts[1].score == pytest.approx(path_score([0.51, 0.53, 0.52], rule))
    assert [v.by for v in verdicts] == ["prm", "prm"] and [v.error for v in verdicts] == [None, None]
    assert verdicts[0].cost.verified == 8 and verdicts[0].cost.prefilled == 0


def test_a_good_path_of_many_steps_is_not_below_a_poor_short_one():
    for rule in ("prod", "sum_logprob"):
        verifier = RewardVerifier(spec(lambda q: [0.9 if len(q.steps) > 1 else 0.8] * len(q.steps)), rule)
        short, long = score(verifier, path("a"), path(*"abcdefgh"))
        assert long.score > short.score


def test_the_whole_solution_has_one_score():
    (verdict,) = score(RewardVerifier(spec(lambda q: [0.7], "whole")), path("a", "b"))
    assert (verdict.score, verdict.by) == (0.7, "orm")
    (verdict,) = score(RewardVerifier(spec(lambda q: [0.7, 0.1], "whole")), path("a", "b"))
    assert verdict.score is None and verdict.error == "orm gave 2 scores for 1 steps"


@pytest.mark.parametrize(
    ("values", "error"),
    [
        (lambda q: [0.5], "prm gave 1 scores for 2 steps"),
        (lambda q: [0.5, 0.5, 0.5], "prm gave 3 scores for 2 steps"),
        (lambda q: [], "prm gave 0 scores for 2 steps"),
        (lambda q: [0.5, math.nan], "prm gave step 2 the score nan"),
        (lambda q: [1.5, 0.5], "prm gave step 1 the score 1.5"),
        (lambda q: 1 / 0, "prm: ZeroDivisionError: division by zero"),
    ],
)
def test_what_a_model_gets_wrong_is_an_error_and_never_a_zero(values, error):
    (verdict,) = score(RewardVerifier(spec(values)), path("a", "b"))
    assert verdict.score is None and error in verdict.error


def test_a_path_that_cannot_be_read_is_its_own_error():
    class Picky(Scripted):
        def score(self, queries):
            return [
                Rewards(error="too long") if "x" in q.steps else found
                for q, found in zip(queries, super().score(queries), strict=True)
            ]

    verifier = RewardVerifier(RewardSpec("picky", "steps", factory=lambda: Picky(lambda q: [0.5])))
    fine, broken = score(verifier, path("a"), path("x"))
    assert fine.score == 0.5 and broken.error == "prm: too long"


def test_another_number_of_answers_than_paths_is_an_error_of_all():
    class Short(Scripted):
        def score(self, queries):
            return super().score(queries)[1:]

    verdicts = score(
        RewardVerifier(RewardSpec("short", "steps", factory=lambda: Short(lambda q: [0.5]))), path("a"), path("b")
    )
    assert [v.error for v in verdicts] == ["prm answered 1 of 2 paths"] * 2


def test_a_model_that_never_returns_is_started_anew_and_serves_again():
    built = []

    def build():
        built.append(None)
        stuck = len(built) == 1
        return Scripted(lambda q: [threading.Event().wait(60 if stuck else 0) or 0.5])

    verifier = RewardVerifier(RewardSpec("stuck", "steps", factory=build), timeout_s=0.5)
    (first,) = score(verifier, path("a"))
    assert first.score is None and "prm did not answer within 0.5 s and was started anew" in first.error
    verifier.timeout_s = 60
    (second,) = score(verifier, path("a"))
    assert second.score == 0.5 and len(built) == 2


class Mortal:
    """A handle whose process dies `deaths` times."""

    name = "prm-0"

    def __init__(self, deaths: int) -> None:
        self.deaths, self.asked = deaths, 0

    async def ready(self):
        return 1

    async def restart(self):
        raise AssertionError("what is dead is not killed")

    async def score(self, queries):
        self.asked += 1
        if self.asked <= self.deaths:
            raise EngineDownError("the actor died by signal 11")
        return [Rewards((0.5,)) for _ in queries]


@pytest.mark.parametrize(("deaths", "expected"), [(0, 0.5), (1, 0.5), (2, None)])
def test_a_model_whose_process_dies_is_asked_once_more(deaths, expected):
    verifier = RewardVerifier(GOOD, handles=[Mortal(deaths)])
    (verdict,) = score(verifier, path("a"))
    assert verdict.score == expected
    assert (verdict.error or "").endswith("" if expected else "prm-0 died: the actor died by signal 11")


def test_calls_wait_for_each_other_before_their_time_runs():
    """A model that is asked one by one never seems to hang because others are before it."""

    class Lone(Mortal):
        inside = most = 0

        async def score(self, queries):
            self.inside += 1
            self.most = max(self.most, self.inside)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.inside -= 1
            return await super().score(queries)

    handle = Lone(0)
    verifier = RewardVerifier(GOOD, handles=[handle])

    async def all_at_once():
        return await asyncio.gather(*(verifier.score([path(str(i))]) for i in range(8)))

    assert [v.score for (v,) in asyncio.run(all_at_once())] == [0.5] * 8
    assert (handle.most, handle.asked) == (1, 8)


def test_problems_are_dealt_to_the_models_by_their_ids():
    models = [Scripted(lambda q: [0.1 * len(q.problem)] * len(q.steps)) for _ in range(3)]
    handles = [InlineReward(f"prm-{i}", RewardSpec("m", "steps", factory=lambda m=m: m)) for i, m in enumerate(models)]
    verifier = RewardVerifier(GOOD, handles=handles)
    batch = [path("a", problem="p" * (1 + i % 8)) for i in range(24)]
    verdicts = score(verifier, *batch)
    assert [v.score for v in verdicts] == pytest.approx([0.1 * len(c.problem.text) for c in batch])
    seen = [{q.problem for call in m.calls for q in call} for m in models]
    assert sum(map(len, seen)) == 8 and sum(bool(s) for s in seen) > 1


def test_equal_content_is_asked_once():
    model = Scripted(lambda q: [0.5] * len(q.steps))
    verifier = Cached(RewardVerifier(RewardSpec("m", "steps", factory=lambda: model)))
    score(verifier, path("a"), path("a"), path("b"))
    score(verifier, path("a"), replace(path("a"), context=((9, 9),)))
    assert [len(call) for call in model.calls] == [2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aggregate": "max"}, "must be one of last, min, prod, mean, sum_logprob, got 'max'"),
        ({"timeout_s": 0}, "timeout_s must be positive, got 0"),
        ({"spec": replace(GOOD, separator="")}, "step_separator must be at least one character"),
    ],
)
def test_a_verifier_is_checked(options, message):
    with pytest.raises(ValueError, match=message):
        RewardVerifier(**{"spec": GOOD, **options})


def test_a_model_that_cannot_be_built_is_an_error():
    def broken():
        raise OSError("no weights")

    (verdict,) = score(RewardVerifier(RewardSpec("broken", "steps", factory=broken)), path("a"))
    assert verdict.error == "prm: OSError: no weights"
    with pytest.raises(EngineFailedError, match="no weights"):
        asyncio.run(InlineReward("x", RewardSpec("broken", "steps", factory=broken)).ready())


def test_a_search_goes_on_without_a_model_that_hangs_or_miscounts():
    stuck = spec(lambda q: [threading.Event().wait(60)])
    short = spec(lambda q: [])
    good = FunctionVerifier(lambda problem, text: 0.9 if "42" in text else 0.2)
    members = (good, RewardVerifier(stuck, timeout_s=0.5), RewardVerifier(short))
    found = Lab(ScriptedEngine(["Answer: 41", "Answer: 42", "Answer: 43"])).solve(
        "best_of_n", Problem("What is 6 * 7?", reference="42"), verifier=Ensemble(members), options={"samples": 3}
    )
    assert (found.answer, found.correct, found.error) == ("42", True, None)
    said = " ".join(found.warnings)
    assert "did not answer within 0.5 s" in said and "gave 0 scores for 1 steps" in said
