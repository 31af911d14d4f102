"""Verifiers that are commands, caches, votes and checks: what they score and how they fail."""

import asyncio
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import pytest

from engine.scripted import ScriptedEngine
from engine.simulated import SimulatedEngine
from search.checkers import Game24
from search.types import Cost, Problem, Verdict
from search.verifiers.cached import Cached
from search.verifiers.checked import AnswerCheck
from search.verifiers.command import CommandVerifier
from search.verifiers.ensemble import Ensemble
from search.verifiers.function import FunctionVerifier
from search.verifiers.sound import sound_verdicts
from search.verifiers.step_scores import verdict_of
from search.verifiers.threads import in_thread
from search.verifiers.vote import VoteEvaluation
from tests.search.candidates import command, path, score

ECHO = "import json, sys; asked = json.load(sys.stdin); "


# -- steps ---------------------------------------------------------------------------------------------------------
def test_step_scores_become_a_verdict():
    assert verdict_of([0.5, 0.9], 2, "prm") == Verdict(0.9, "prm")
    assert verdict_of([0.5, 0.9], 2, "prm", "min", Cost(verified=7)) == Verdict(0.5, "prm", Cost(verified=7))
    assert verdict_of((1, 0), 2, "prm", "mean").score == 0.5


@pytest.mark.parametrize(
    ("scores", "error"),
    [
        ([0.5], "prm gave 1 scores for 2 steps"),
        ([], "prm gave 0 scores for 2 steps"),
        ([0.5, 0.5, 0.5], "prm gave 3 scores for 2 steps"),
        ([0.5, float("nan")], "prm gave step 2 the score nan, not a number in [0, 1]"),
        ([1.5, 0.5], "prm gave step 1 the score 1.5"),
        ([None, 0.5], "prm gave step 1 the score None"),
        ([True, 0.5], "prm gave step 1 the score True"),
        ("ab", "prm gave str, not a list of step scores"),
        (0.5, "prm gave float, not a list of step scores"),
    ],
)
def test_step_scores_that_do_not_fit_are_an_error_and_never_a_zero(scores, error):
    verdict = verdict_of(scores, 2, "prm")
    assert verdict.score is None and verdict.error.startswith(error)


# -- commands ------------------------------------------------------------------------------------------------------
def test_a_command_gets_the_path_and_gives_a_score(tmp_path: Path):
    seen = tmp_path / "seen.json"
    verifier = command(f"import sys; text = sys.stdin.read(); open({str(seen)!r}, 'w').write(text); print('0.25')")
    (verdict,) = score(verifier, path("6 * 7 is 42.\n\n", "Answer: 42", complete=True))
    assert (verdict.score, verdict.error) == (0.25, None)
    assert json.loads(seen.read_text()) == {
        "problem": "What is 6 * 7?",
        "reference": "42",
        "steps": ["6 * 7 is 42.\n\n", "Answer: 42"],
        "text": "6 * 7 is 42.\n\nAnswer: 42",
        "answer": "42",
        "complete": True,
    }


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print(1)", 1.0),
        ('print(\'{"score": 0.5, "why": "so"}\')', 0.5),
        (ECHO + "print([0.2, 0.6])", 0.2),
        (ECHO + "print(json.dumps({'scores': [0.9] * len(asked['steps'])}))", 0.9),
        ("print('0.75'); import sys; sys.stderr.write('chatty' * 1000)", 0.75),
    ],
)
def test_forms_of_output(code, expected):
    (verdict,) = score(command(code, aggregate="min"), path("a", "b"))
    assert (verdict.score, verdict.error) == (expected, None)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("print('nan')", "wrote no JSON: 'nan"),
        ("print('NaN')", "gave the score nan"),
        ("print('{\"score\": NaN}')", "gave the score nan"),
        ("print('1.5')", "gave the score 1.5, not a number in [0, 1]"),
        ("print('true')", "gave the score True"),
        ("print('null')", "gave the score None"),
        ("print('{}')", "gave the score None"),
        ("print('[0.5]')", "gave 1 scores for 2 steps"),
        ("print('[0.5, -1]')", "gave step 2 the score -1"),
        ("print('high')", "wrote no JSON: 'high"),
        ("pass", "wrote no JSON: ''"),
        ("import sys; sys.stderr.write('no licence'); sys.exit(3)", "exited with code 3: no licence"),
        ("import os; os.kill(os.getpid(), 11)", "was ended by signal 11"),
        ("print('1' * (1 << 21))", "wrote more than 1048576 bytes"),
    ],
)
def test_whatever_goes_wrong_in_a_command_is_an_error(code, error):
    (verdict,) = score(command(code), path("a", "b"))
    assert verdict.score is None and error in verdict.error


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_command_that_hangs_is_killed_with_all_it_started(tmp_path: Path):
    pids = tmp_path / "pids"
    code = (
        "import os, subprocess, sys, time; sleep = [sys.executable, '-c', 'import time; time.sleep(60)']; "
        "child = subprocess.Popen(sleep); "
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}'); time.sleep(60)"
    )
    began = time.monotonic()
    (verdict,) = score(command(code, timeout_s=2.0), path("a"))
    assert verdict.error.endswith("was killed after 2 s") and time.monotonic() - began < 15
    started = [int(pid) for pid in pids.read_text().split()]
    deadline = time.monotonic() + 10
    while any(map(alive, started)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, started))


def test_what_a_command_leaves_running_is_ended_too(tmp_path: Path):
    pid = tmp_path / "pid"
    code = (
        "import subprocess, sys; quiet = subprocess.DEVNULL; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], stdout=quiet, stderr=quiet); "
        f"open({str(pid)!r}, 'w').write(str(child.pid)); print(0.5)"
    )
    (verdict,) = score(command(code), path("a"))
    assert verdict.score == 0.5
    deadline = time.monotonic() + 10
    while alive(int(pid.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(int(pid.read_text()))


def test_a_command_that_closes_its_output_and_stays_is_killed():
    (verdict,) = score(command("import os, time; os.close(1); os.close(2); time.sleep(60)", timeout_s=1.5), path("a"))
    assert verdict.error.endswith("was killed after 1.5 s")


def test_a_search_that_gives_up_on_a_command_leaves_no_process(tmp_path: Path):
    """The budget's seconds end the verifier's call; its process goes with it."""
    pid = tmp_path / "pid"
    code = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)"

    async def give_up():
        await asyncio.wait_for(command(code, timeout_s=60.0).score([path("a")]), 2.0)

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())
    deadline = time.monotonic() + 10
    while alive(int(pid.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(int(pid.read_text()))


def test_a_command_that_does_not_read_its_input_may_answer():
    (verdict,) = score(command("print(0.5)"), path("x" * 1_000_000))
    assert verdict.score == 0.5


def test_commands_run_side_by_side_and_answer_in_order():
    verifier = command(
        ECHO + "import time; time.sleep(0.3 * (asked['text'] == '0.1')); print(asked['text'])", workers=4
    )
    verdicts = score(verifier, *(path(text) for text in ("0.1", "0.2", "0.3", "0.4")))
    assert [verdict.score for verdict in verdicts] == [0.1, 0.2, 0.3, 0.4]


class Counting(CommandVerifier):
    """Runs nothing: counts what runs at a time."""

    running, most = 0, 0

    async def _one(self, candidate):
        cls = type(self)
        cls.running += 1
        cls.most = max(cls.most, cls.running)
        await asyncio.sleep(0.001)
        cls.running -= 1
        return Verdict(0.5, "counting")


def test_workers_are_of_all_searches_and_of_any_event_loop():
    verifier = Counting([sys.executable], workers=2)

    async def run():
        return await asyncio.gather(*(verifier.score([path(f"{i} {j}") for j in range(3)]) for i in range(4)))

    for _ in range(2):
        assert [len(verdicts) for verdicts in asyncio.run(run())] == [3] * 4
    assert (Counting.most, Counting.running) == (2, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"command": "no-such-program-at-all x"}, "must start with a program that can be run"),
        ({"command": ""}, "must start with a program"),
        ({"command": "true", "timeout_s": 0}, "needs timeout_s > 0 and workers >= 1, got 0 and 2"),
        ({"command": "true", "aggregate": "max"}, "must be one of last, min, prod, mean, sum_logprob, got 'max'"),
    ],
)
def test_a_command_is_checked_before_it_is_needed(options, message):
    with pytest.raises(ValueError, match=message):
        CommandVerifier(**options)


# -- functions -----------------------------------------------------------------------------------------------------
def test_a_function_that_never_returns_costs_its_own_scores_only():
    def stuck(problem, text):
        time.sleep(60 if text == "stuck" else 0)
        return 0.5

    began = time.monotonic()
    verdicts = score(FunctionVerifier(stuck, timeout_s=0.3), path("a"), path("stuck"), path("b"))
    assert [verdict.score for verdict in verdicts] == [0.5, None, 0.5]
    assert verdicts[1].error == "stuck did not return within 0.3 s"
    assert time.monotonic() - began < 10


class Own(BaseException):
    """What user code may raise though it should not."""


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, Own])
def test_whatever_a_function_raises_costs_its_own_score_only(error):
    def raises(problem, text):
        if text == "bad":
            raise error("here")
        return 0.5

    async def run():
        batch = [path("a"), path("bad"), path("b")]
        return await asyncio.wait_for(sound_verdicts(FunctionVerifier(raises), batch, None), 20.0)

    verdicts = asyncio.run(run())
    assert [verdict.score for verdict in verdicts] == [0.5, None, 0.5]
    assert verdicts[1].error == f"raises raised {error.__name__}: here"


@pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError, Own])
def test_what_a_thread_raises_comes_back_as_an_ordinary_error(error):
    def work():
        raise error("here")

    with pytest.raises(RuntimeError, match=f"raised {error.__name__}: here"):
        asyncio.run(asyncio.wait_for(in_thread(work), 20.0))


# -- cache ---------------------------------------------------------------------------------------------------------
class Judge:
    """Scores 0.1, 0.2, ... in the order of calls; fails on texts that hold "bad"."""

    def __init__(self, needs=frozenset()):
        self.needs, self.seen = needs, []

    async def score(self, batch):
        verdicts = []
        for candidate in batch:
            self.seen.append(candidate.text)
            bad = "bad" in candidate.text
            value = None if bad else len(self.seen) / 10
            verdicts.append(Verdict(value, "judge", Cost(verified=3), "cannot" if bad else None))
        return verdicts


def test_equal_content_is_judged_once():
    judge = Judge()
    cached = Cached(judge)
    first = score(cached, path("a"), path("b"), path("a", node="r.1"))
    again = score(cached, path("b"), path("c"))
    assert judge.seen == ["a", "b", "c"]
    assert [verdict.score for verdict in first] == [0.1, 0.2, 0.1]
    assert [verdict.score for verdict in again] == [0.2, 0.3]
    assert [verdict.cost.verified for verdict in (*first, *again)] == [3, 3, 0, 0, 3]


@pytest.mark.parametrize(
    "other",
    [
        path("a", "b"),
        path("ab", complete=True),
        path("ab", problem=Problem("Another?", reference="42")),
        path("ab", problem=Problem("What is 6 * 7?", reference="43")),
    ],
    ids=["steps", "complete", "problem", "reference"],
)
def test_content_is_all_that_a_verifier_may_look_at(other):
    judge = Judge()
    score(Cached(judge), path("ab"), other)
    assert len(judge.seen) == 2


def test_a_verifier_that_asks_the_engine_sees_tokens_too():
    for needs, calls in ((frozenset(), 1), (frozenset({"score"}), 2)):
        judge = Judge(needs)
        score(Cached(judge), path("a"), path("a", context=((1,), (3,))))
        assert len(judge.seen) == calls


def test_an_error_is_not_remembered():
    judge = Judge()
    cached = Cached(judge)
    assert [score(cached, path("bad"))[0].error for _ in range(2)] == ["cannot", "cannot"]
    assert judge.seen == ["bad", "bad"]


def test_the_least_recently_used_goes_first():
    judge = Judge()
    cached = Cached(judge, size=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        score(cached, path(text))
    assert judge.seen == ["a", "b", "c", "b"]
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Cached(judge, size=0)


class Shared(Judge):
    """While it judges text "slow", another search fills its cache."""

    cache = None

    async def score(self, batch):
        if batch[0].text == "slow":
            await self.cache.score([path("x"), path("y")])
        return await super().score(batch)


def test_what_is_evicted_while_a_batch_is_judged_is_still_known_to_it():
    judge = Shared()
    judge.cache = cached = Cached(judge, size=2)
    score(cached, path("a"))
    verdicts = score(cached, path("a"), path("slow"))
    assert judge.seen == ["a", "x", "y", "slow"]
    assert [verdict.score for verdict in verdicts] == [0.1, 0.4]


# -- checks --------------------------------------------------------------------------------------------------------
def test_finished_answers_are_checked_and_unfinished_paths_are_not():
    verdicts = score(
        AnswerCheck(),
        path("Answer: 42", complete=True),
        path("Answer: 41", complete=True),
        path("6 * 7 is\n\n"),
        path("I give up.", complete=True),
        path("Answer: 1", complete=True, problem=Problem("Open?")),
    )
    assert [verdict.score for verdict in verdicts] == [1.0, 0.0, None, 0.0, None]
    assert [verdict.error is None for verdict in verdicts] == [True, True, True, True, False]


def test_the_game_of_24_is_its_own_verifier(lab):
    problem = Problem("Use 1 4 7 8.", kind="text", checker=Game24("1 4 7 8"))
    lines = ["Answer: 8 * 4 - 7 + 1", "Answer: (8 - 4) * (7 - 1) = 24", "Answer: 24"]
    found = lab(ScriptedEngine(lines)).solve(
        "best_of_n", problem, verifier=AnswerCheck(), options={"samples": 12, "wave": 3}
    )
    assert (found.answer, found.correct, found.stop_reason) == ("(8 - 4) * (7 - 1) = 24", True, "accepted")
    assert len(found.tree.asked) == 3


# -- votes ---------------------------------------------------------------------------------------------------------
def test_the_model_votes_among_the_candidates(lab):
    asked = []

    def judge(seen, question):
        asked.append((seen, question))
        return 0.6 if "choice 2" in question else 0.2

    one = lab(ScriptedEngine(["x"], judge))
    verdicts = score(VoteEvaluation(one.pool), path("first way"), path("second way"), path("third way"))
    assert [verdict.score for verdict in verdicts] == pytest.approx([0.2, 0.6, 0.2])
    assert {seen for seen, _ in asked} == {("I have compared them.",)}
    assert "Is choice 3 the most promising one?" in asked[2][1]
    assert [verdict.cost.prefilled > 0 for verdict in verdicts] == [True, False, False]


def test_a_vote_with_no_opinion_is_even_and_an_empty_batch_is_empty(lab):
    one = lab(ScriptedEngine(["x"], lambda seen, question: 0.0))
    assert [v.score for v in score(VoteEvaluation(one.pool), path("a"), path("b"))] == [0.5, 0.5]
    assert score(VoteEvaluation(one.pool)) == []


def test_the_list_of_paths_is_dropped_once_it_was_voted_on(lab):
    one = lab(SimulatedEngine(depth=4))
    one.solve("tot", verifier=VoteEvaluation(one.pool), options={"evaluate": "vote", "b": 2, "k": 3})
    (engine,) = one.pool.engines.values()
    assert engine.actor.engine.stats()["scores"] > 0
    assert engine.actor.engine.tree.num_tokens <= 8  # what all prompts begin with


def test_a_search_by_votes(lab):
    one = lab(SimulatedEngine(depth=3))
    found = one.solve("tot", verifier=VoteEvaluation(one.pool), options={"evaluate": "vote", "b": 2, "k": 3})
    for depth in range(1, found.tree.height + 1):
        assert sum(node.score for node in found.tree.level(depth)) == pytest.approx(1.0)
    assert found.complete


# -- the fence -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("turns", range(4))
def test_a_search_cancelled_as_its_verifier_answers_is_cancelled(turns):
    async def run():
        answer = asyncio.get_running_loop().create_future()

        class Waits:
            needs = frozenset()

            async def score(self, batch):
                return await answer

        task = asyncio.create_task(sound_verdicts(Waits(), [path("a")], 60.0))
        await asyncio.sleep(0.01)
        answer.set_result([Verdict(0.5, "waits")])
        for _ in range(turns):
            await asyncio.sleep(0)
        if task.cancel():
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            assert turns and await task == [Verdict(0.5, "waits")]

    asyncio.run(run())


class Answers:
    needs = frozenset()

    def __init__(self, verdict):
        self.verdict = verdict

    async def score(self, batch):
        return [self.verdict] * len(batch)


class Raising:
    needs = frozenset()

    def __init__(self, error):
        self.error = error

    async def score(self, batch):
        raise self.error


@pytest.mark.parametrize("kind", ["Fraction", "float32", "float64", "int8"])
def test_scores_are_numbers_of_any_kind_and_become_floats(kind):
    one = Fraction(1) if kind == "Fraction" else getattr(pytest.importorskip("numpy"), kind)(1)
    (verdict,) = asyncio.run(sound_verdicts(Answers(Verdict(one, "v")), [path("a")], None))
    assert type(verdict.score) is float and verdict == Verdict(1.0, "v")
    steps = verdict_of([one, one], 2, "prm")
    assert type(steps.score) is float and steps == Verdict(1.0, "prm")


@pytest.mark.parametrize("score", [True, "0.5", 1.5, float("nan"), Fraction(-1, 2), 0.5j])
def test_what_is_no_number_in_the_unit_interval_is_no_score(score):
    (verdict,) = asyncio.run(sound_verdicts(Answers(Verdict(score, "v")), [path("a")], None))
    assert verdict.score is None and verdict.error == f"Answers gave the score {score!r}, not a number in [0, 1]"


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError, Own])
def test_what_a_verifier_raises_of_its_own_is_its_error(error):
    (verdict,) = asyncio.run(sound_verdicts(Raising(error("here")), [path("a")], 60.0))
    assert verdict.score is None and verdict.error == f"Raising raised {error.__name__}: here"


def test_ctrl_c_while_a_verifier_works_ends_the_program_and_in_another_thread_is_the_verifiers_own():
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(sound_verdicts(Raising(KeyboardInterrupt("here")), [path("a")], 60.0))
    with ThreadPoolExecutor() as threads:
        work = sound_verdicts(Raising(KeyboardInterrupt("here")), [path("a")], 60.0)
        (verdict,) = threads.submit(asyncio.run, work).result()
    assert verdict.error == "Raising raised KeyboardInterrupt: here"


class Quiet(CommandVerifier):
    """Never answers for text "stuck"."""

    async def _one(self, candidate):
        if candidate.text == "stuck":
            await asyncio.Event().wait()
        return Verdict(0.5, "quiet")


@pytest.mark.parametrize("wrapped", ["function", "command", "cached", "ensemble"])
def test_verdicts_that_came_before_the_time_ran_out_are_kept(wrapped):
    go_on = threading.Event()
    function = FunctionVerifier(lambda problem, text: 0.5 if text != "stuck" else float(go_on.wait()))
    quiet = Quiet([sys.executable], workers=2)
    verifier = {
        "function": function,
        "command": quiet,
        "cached": Cached(quiet),
        "ensemble": Ensemble((function, quiet)),
    }[wrapped]
    batch = [path("a"), path("b"), path("stuck"), path("a", node="r.3")]
    try:
        verdicts = asyncio.run(sound_verdicts(verifier, batch, 1.0))
    finally:
        go_on.set()
    last = None if wrapped in ("function", "ensemble") else 0.5
    assert [verdict.score for verdict in verdicts] == [0.5, 0.5, None, last]
    assert verdicts[2].error == f"{type(verifier).__name__} did not answer within 1 s"
    if wrapped == "cached":
        assert [verdict.score for verdict in score(verifier, path("b"), path("a"))] == [0.5, 0.5]


def test_no_time_left_asks_nobody():
    asked = []

    class Asked:
        needs = frozenset()

        async def score(self, batch):
            asked.append(batch)
            return []

    (verdict,) = asyncio.run(sound_verdicts(Asked(), [path("a")], 0.0))
    assert verdict.score is None and verdict.error == "Asked did not answer within 0 s" and not asked
