"""What users do to it: odd inputs, threads, early exits, code of their own that misbehaves."""

import asyncio
import json
import math
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("pydantic")

from engine.scripted import ScriptedEngine
from orchestrator import Orchestrator, UsageError
from orchestrator.problems import read_problems
from orchestrator.task_problems import task_problems
from search.strategies.base import TreeStrategy
from search.strategies.greedy import Greedy
from search.types import Event, Verdict

INLINE = {"model": "simulated", "runtime": "inline"}
SLOW = {**INLINE, "simulated": {"per_call_s": 0.05, "realtime": True}}


@pytest.mark.parametrize("length", [10, 255, 256, 300, 1023, 5000])
def test_a_long_one_line_problem_is_a_text_and_no_path(length: int):
    assert read_problems("word " * (length // 5 + 1))[0].text.startswith("word")


def test_files_as_people_have_them(tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(b'\xef\xbb\xbf{"id": null, "question": "a\xe2\x80\xa8b"}\r\n\r\n{"id": 7, "problem": "c"}\r\n')
    problems = read_problems(str(rows))
    assert [p.text for p in problems] == ["a\u2028b", "c"]
    assert [p.id == "None" for p in problems] == [False, False]
    assert problems[1].id == "7"
    rows.write_text('{"question": "a", "answer": " "}\n{"question": "b", "answer": 0}\n', encoding="utf-8")
    assert [p.reference for p in read_problems(str(rows))] == [None, "0"]
    (tmp_path / "bom.txt").write_bytes(b"\xef\xbb\xbfWhat?")
    assert read_problems(str(tmp_path / "bom.txt"))[0].text == "What?"
    for argument, word in ((str(tmp_path), "folder"), ("gone.json", "no such file"), ("gone.csv", "no such file")):
        with pytest.raises(UsageError, match=word):
            read_problems(argument)
    (tmp_path / "D.JSONL").write_text('{"question": "a"}\n{"question": "b"}\n')
    assert [p.text for p in read_problems(str(tmp_path / "D.JSONL"))] == ["a", "b"]
    assert len(task_problems(str(tmp_path / "D.JSONL"), "plain", {}, None, 0)[1]) == 2
    for name in ("data.csv", "D.CSV", "rows.jsonl.gz", "rows.json"):
        (tmp_path / name).write_text("question,answer\na,1\n")
        with pytest.raises(UsageError, match=r"is not read here: .*\.jsonl file .*`run` reads .*\.csv"):
            read_problems(str(tmp_path / name))
    assert read_problems("Is data.json a file?")[0].text == "Is data.json a file?"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda o: o.solve(None), "a problem is a text"),
        (lambda o: o.solve_many("abc"), "list of texts"),
        (lambda o: o.solve("a", budget={"tokens": 1.5}), "whole number"),
        (lambda o: o.solve("a", budget={"tokens": "x"}), "whole number"),
        (lambda o: o.solve("a", budget={"seconds": math.nan}), "finite"),
        (lambda o: o.solve("a", budget=5), "mapping"),
        (lambda o: o.solve("a", seed=2**64), "seed must be a whole number of at most 64 bits"),
        (lambda o: o.stream("a", seed=-(2**63) - 1), "seed must be"),
        (lambda o: o.solve_many(["a"], seed=1.5), "seed must be"),
        (lambda o: o.run_batch("rows.jsonl", "out", seed=2**64), "seed must be"),
        (lambda o: o.solve("a", "tot", hints="abc"), "list of texts"),
        (lambda o: o.solve("a", "tot", hints=[1, 2]), "list of texts"),
        (lambda o: o.solve("a", "tot", order="dfs", prune_below="abc"), "prune_below must be a number"),
        (lambda o: o.solve("a", "mcts", c=math.inf), "c must be a number"),
        (lambda o: o.solve("a", "self_consistency", stop_at=0.5), "stop_at"),
        (lambda o: o.solve("a", Greedy(), max_depth=3), "go with a strategy's name"),
        (lambda o: o.solve("a", Greedy), "strategy object"),
        (lambda o: o.solve("a", object()), "strategy object"),
        (lambda o: o.stream(""), "empty"),
        (lambda o: Orchestrator(verifier=5, **INLINE), "verifier takes"),
        (lambda o: Orchestrator(engine=5), "builds an engine"),
        (lambda o: Orchestrator(engine=lambda: 1 / 0), "ZeroDivisionError"),
        (lambda o: Orchestrator(engine=lambda: None), "must return an engine"),
        (lambda o: Orchestrator(**{**INLINE, "simulated": {"foo": 1}}), "simulated engine"),
        (lambda o: Orchestrator(step_regex="(", **INLINE), "no regular expression"),
        (lambda o: Orchestrator(engines=True, **INLINE), "whole number"),
    ],
)
def test_wrong_types_are_usage_errors(call, words):
    with Orchestrator(**INLINE) as orchestrator, pytest.raises(UsageError, match=words):
        call(orchestrator)


class Own(BaseException):
    """What user code may raise though it should not."""


BREAKS = {error.__name__: error for error in (KeyError, SystemExit, KeyboardInterrupt, asyncio.CancelledError, Own)}


class Raises(TreeStrategy):
    name = "raises"
    judges = False

    def ask(self, tree, capacity):
        if tree.problem.text in BREAKS:
            raise BREAKS[tree.problem.text]("broken")
        return [] if tree.in_flight or len(tree) > 1 else [tree.expansion(tree.root, 1)]


@pytest.mark.parametrize("error", BREAKS)
def test_one_broken_problem_does_not_touch_the_others(error: str):
    with Orchestrator(**INLINE) as orchestrator:
        results = orchestrator.solve_many(["a", error, "c"], Raises())
    assert [r.stop_reason == "failed" for r in results] == [False, True, False]
    assert error in (results[1].error or "")
    assert all(len(r.tree) > 1 for r in (results[0], results[2]))


def test_results_come_one_by_one():
    with Orchestrator(concurrency=1, **SLOW) as orchestrator:
        arrived = [time.monotonic() for _ in orchestrator.solve_each([f"q{i}?" for i in range(4)], "greedy")]
    assert arrived[-1] - arrived[0] > 0.1


class Returns:
    needs = frozenset()

    def __init__(self, verdict: object) -> None:
        self.verdict = verdict

    async def score(self, batch):
        if isinstance(self.verdict, BaseException):
            raise self.verdict
        return [self.verdict] * len(batch)


@pytest.mark.parametrize("strategy", ["tot", "mcts"])
@pytest.mark.parametrize(
    "verdict",
    [Verdict(math.nan, "v"), Verdict(2.0, "v"), Verdict("x", "v"), 0.5, *(error("here") for error in BREAKS.values())],
)
def test_unsound_verdicts_cost_their_scores_only(strategy: str, verdict: object):
    with Orchestrator(verifier=Returns(verdict), **INLINE) as orchestrator:
        result = orchestrator.solve("a?", strategy)
    assert result.error is None
    assert result.warnings
    assert all(node.score is None for node in result.tree.nodes())
    json.dumps(result.to_json(), allow_nan=False)


def test_a_slow_verifier_neither_breaks_the_seconds_nor_holds_up_other_problems():
    def slow(problem: str, text: str) -> float:
        time.sleep(0.3)
        return 0.5

    with Orchestrator(verifier=slow, **INLINE) as orchestrator:
        began = time.monotonic()
        results = orchestrator.solve_many([f"q{i}?" for i in range(4)], "tot", b=5, k=8, budget={"seconds": 1.0})
        assert time.monotonic() - began < 8
    assert {r.stop_reason for r in results} == {"seconds"}
    assert all(r.cost.seconds["total"] < 2.5 for r in results)


def test_many_threads_at_first_use_share_one_loop():
    with Orchestrator(**INLINE) as orchestrator:
        gate, answers = threading.Barrier(8), []

        def work(i: int) -> None:
            gate.wait()
            answers.append((i, orchestrator.solve(f"Problem {i}?", "tot").answer))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(t.name == "orchestrator" for t in threading.enumerate()) == 1
        alone = [(i, orchestrator.solve(f"Problem {i}?", "tot").answer) for i in range(8)]
    assert sorted(answers) == alone
    assert not any(t.name == "orchestrator" for t in threading.enumerate())


def test_closing_ends_what_runs():
    orchestrator = Orchestrator(**SLOW)
    threading.Timer(0.3, orchestrator.close).start()
    with pytest.raises(RuntimeError, match="closed"):
        orchestrator.solve("a?", "self_consistency", samples=200, wave=1, stop="none")
    orchestrator.close()


def test_calls_from_a_callback_are_refused_not_deadlocked():
    seen: list[str] = []

    def callback(event: Event) -> None:
        for call in (lambda: orchestrator.solve("b?"), orchestrator.close):
            try:
                call()
            except RuntimeError as error:
                seen.append(str(error))

    with Orchestrator(**INLINE) as orchestrator:
        orchestrator.solve("a?", "greedy", on_event=callback)
    assert seen
    assert all("event callback" in text for text in seen)


def test_leaving_a_stream_early_ends_its_search():
    engine = ScriptedEngine(["step\n\n"], sleep=time.sleep)
    with Orchestrator(engine=lambda: engine, runtime="inline") as orchestrator:
        stream = orchestrator.stream("a?", "greedy", max_depth=10_000)
        next(item for item in stream if isinstance(item, Event) and item.kind == "node")
        stream.close()
        time.sleep(0.3)
        before = engine.counts["generated"]
        time.sleep(0.3)
        assert engine.counts["generated"] == before


def test_solve_works_inside_a_running_loop():
    async def main() -> str | None:
        with Orchestrator(**INLINE) as orchestrator:
            return orchestrator.solve("a?", "greedy").answer

    assert asyncio.run(main())


def test_an_engine_factory_is_asked_once_for_each_engine_and_once_by_the_driver():
    built: list[int] = []

    def factory() -> ScriptedEngine:
        built.append(1)
        return ScriptedEngine(["Answer: 1"])

    with Orchestrator(engine=factory, engines=2, runtime="inline") as orchestrator:
        orchestrator.start()
        orchestrator.solve("a?", "self_consistency")
    assert len(built) == 3


def test_starting_waits_for_so_long_and_names_who_did_not_answer(monkeypatch):
    async def silent() -> int:
        await asyncio.Event().wait()
        return 0

    with Orchestrator(engines=3, **INLINE) as orchestrator:
        assert set(orchestrator.start()) == {"engine-0", "engine-1", "engine-2"}
        monkeypatch.setattr(orchestrator.pool.engines["engine-1"], "ready", silent)
        with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s from engine-1$"):
            orchestrator.start(timeout_s=0.1)


def test_verifier_none_means_no_verifier():
    with Orchestrator(verifier=None, **INLINE) as orchestrator:
        result = orchestrator.solve("a?", "tot")
    assert all(node.score is None for node in result.tree.nodes())


def test_correctness_against_a_reference(tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "2 + 2?", "answer": "two and two\\n#### 4"}\n{"question": "3 + 3?", "answer": 7}\n')
    engine = ScriptedEngine(lambda path, served: "Answer: 4.00")
    with Orchestrator(engine=lambda: engine, runtime="inline") as orchestrator:
        results = orchestrator.solve_many(read_problems(str(rows)), "greedy")
    assert [r.correct for r in results] == [True, False]
