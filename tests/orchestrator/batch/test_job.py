"""Batch jobs in this process: rows as they finish, bad rows, retries, limits, pausing and going on."""

import json
import threading
from pathlib import Path

import pytest

pytest.importorskip("pydantic")

from engine.text_engine import Latency
from orchestrator import Orchestrator, UsageError
from orchestrator.batch import formats
from orchestrator.batch.events import read_events
from orchestrator.batch.inputs import Columns, Shard
from orchestrator.batch.job import JobOptions
from orchestrator.batch.journal import journal_path, read_journal
from orchestrator.batch.stop import Stop
from search.types import Event
from search.verifiers.auc import auc
from tests.orchestrator.batch import virtual
from tests.orchestrator.batch.jobs import INLINE, plain, run


def test_rows_are_the_results_of_solve(write_rows, read_rows, tmp_path: Path):
    rows = write_rows(5)
    summary = run(rows, tmp_path / "out", "mcts", seed=3, simulations=6)
    found = read_rows(tmp_path / "out")
    assert (summary.rows, summary.failed, summary.graded, summary.stop) == (5, 0, 5, None)
    assert summary.tokens == summary.all_tokens == sum(row["tokens"]["generated"] for row in found)
    with Orchestrator(**INLINE) as orchestrator:
        from search.types import Problem

        for row in found:
            alone = orchestrator.solve(
                Problem(row["question"], row["id"], reference=row["id"][1:]), "mcts", seed=3, simulations=6
            ).to_json()
            same = ("answer", "text", "correct", "stop_reason", "votes", "node", "complete")
            assert {k: row[k] for k in same} == {k: alone[k] for k in same}
            finish = read_journal(journal_path(tmp_path / "out/runs/mcts/journal", row["id"])).finish
            strip = lambda nodes: [{k: v for k, v in n.items() if k != "engine"} for n in nodes]  # noqa: E731
            assert strip(finish["tree"]["nodes"]) == strip(alone["tree"]["nodes"])


def test_case_67_bad_rows_are_error_rows_and_the_rest_has_results(tmp_path: Path, read_rows):
    file = tmp_path / "rows.jsonl"
    lines = [json.dumps({"question": f"What is {i}?"}).encode() for i in range(100)]
    lines[10] = json.dumps({"question": "long " * 10_000}).encode()
    lines[20] = b'{"question": ""}'
    lines[30] = b'{"question": "\xff"}'
    file.write_bytes(b"\n".join(lines))
    summary = run(file, tmp_path / "out", "greedy")
    rows = read_rows(tmp_path / "out")
    errors = {row["id"]: row["error"] for row in rows if "error" in row}
    assert (len(rows), summary.failed) == (100, 3)
    assert set(errors) == {"11", "21", "31"}
    assert "exceeds the context" in errors["11"] and "empty" in errors["21"] and "UTF-8" in errors["31"]
    again = run(file, tmp_path / "out", "greedy")
    assert (again.skipped, again.tokens, again.failed) == (100, 0, 3)


def test_a_row_without_an_id_that_cannot_be_read_takes_nobody_elses(tmp_path: Path, read_rows):
    file = tmp_path / "rows.jsonl"
    lines = [json.dumps({"question": f"What is {i}?", "id": str(i)}).encode() for i in range(6)]
    lines[2] = b"\xff"
    file.write_bytes(b"\n".join(lines))
    assert run(file, tmp_path / "out", "greedy").failed == 1
    assert {row["id"] for row in read_rows(tmp_path / "out") if "error" not in row} == set("01345")


def test_other_columns_are_refused_by_name(tmp_path: Path, read_rows):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"question": "What is 1 + 1?", "target": "2"}) + "\n")
    run(file, tmp_path / "out", "greedy")
    with pytest.raises(UsageError, match=r"columns\.answer: there None, here 'target'"):
        run(file, tmp_path / "out", "greedy", job=JobOptions(columns=Columns(answer="target")))
    assert len(read_rows(tmp_path / "out")) == 1


def test_a_row_that_says_something_else_now_is_told_so(tmp_path: Path, read_rows):
    file = tmp_path / "rows.jsonl"
    for answer in "23":
        file.write_text(json.dumps({"question": "What is 1 + 1?", "answer": answer, "id": "a"}) + "\n")
        run(file, tmp_path / "out", "greedy")
    rows = read_rows(tmp_path / "out")
    assert "another question or answer than row 'a' has now" in rows[-1]["error"] and "--name" in rows[-1]["error"]


def test_case_72_the_first_row_is_on_disk_before_the_second_problem_ends(write_rows, read_rows, tmp_path: Path):
    seen: list[int] = []

    def watch(event: Event) -> None:
        if event.kind == "row":
            seen.append(len(read_rows(tmp_path / "out")))

    run(write_rows(10), tmp_path / "out", "greedy", config={"concurrency": 1}, on_event=watch)
    assert seen == list(range(1, 11))


def test_the_first_result_is_on_disk_before_the_fourth_of_64_problems_starts(write_rows, read_rows, tmp_path: Path):
    """Three in flight on four engines: a problem begins when the row of another one can be read."""
    started: list[int] = []

    def watch(event: Event) -> None:
        if event.kind == "start":
            started.append(len(read_rows(tmp_path / "out")))

    run(write_rows(64), tmp_path / "out", "mcts", config={"concurrency": 3, "engines": 4}, on_event=watch)
    assert len(started) == 64 and all(rows >= i - 2 for i, rows in enumerate(started))


def test_case_69_finished_rows_are_skipped_and_half_grown_trees_go_on(write_rows, read_rows, tmp_path: Path):
    rows, out = write_rows(12), tmp_path / "out"
    whole = run(rows, tmp_path / "whole", "mcts")
    stop, total, waves = Stop(), 0, [0]

    def pause(event: Event) -> None:
        waves[0] += event.kind == "wave"
        if waves[0] == 9:
            stop.set("test")

    first = run(rows, out, "mcts", config={"concurrency": 3}, halt=stop, on_event=pause)
    assert first.stop == "test" and first.rows < 12
    total += first.tokens
    resumed: list[Event] = []
    second = run(rows, out, "mcts", config={"engines": 2}, on_event=resumed.append)
    assert (second.stop, second.rows, second.skipped) == (None, 12, first.rows)
    assert any(event.kind == "resume" for event in resumed)
    assert total + second.tokens == whole.tokens
    assert plain(read_rows(out)) == plain(read_rows(tmp_path / "whole"))
    assert second.all_tokens == whole.tokens


def test_a_finished_journal_without_its_row_gives_the_row_again(write_rows, read_rows, tmp_path: Path):
    rows, out = write_rows(4), tmp_path / "out"
    run(rows, out)
    before = read_rows(out)
    file = out / "results.jsonl"
    text = file.read_text().splitlines(keepends=True)
    file.write_text("".join(text[:2]) + text[2][:30])
    again = run(rows, out)
    assert (again.tokens, again.skipped) == (0, 2)
    assert plain(read_rows(out)) == plain(before)


def test_changed_settings_are_refused_by_key_and_speed_settings_are_not(write_rows, tmp_path: Path):
    rows, out = write_rows(2), tmp_path / "out"
    run(rows, out, "tot", b=2)
    before = (out / "results.jsonl").read_bytes()
    with pytest.raises(UsageError, match=r"strategy\.b: there 2, here 3") as stop:
        run(rows, out, "tot", b=3, seed=1, config={"temperature": 0.5})
    assert "seed: there 0, here 1" in str(stop.value) and "temperature: there 0.8, here 0.5" in str(stop.value)
    for key, value in (("attention", "reference"), ("device", "cpu"), ("dtype", "float32")):
        with pytest.raises(UsageError, match=f"{key}: there 'auto', here '{value}'"):
            run(rows, out, "tot", b=2, config={key: value})
    assert (out / "results.jsonl").read_bytes() == before
    assert run(rows, out, "tot", b=2, config={"engines": 4, "rows_per_engine": 1}).skipped == 2


def test_two_strategies_and_two_names_share_a_folder(write_rows, read_rows, tmp_path: Path):
    rows, out = write_rows(3), tmp_path / "out"
    run(rows, out, "tot")
    run(rows, out, "greedy")
    run(rows, out, "tot", job=JobOptions(name="wide"), b=4)
    found = read_rows(out)
    assert sorted((row["run"], row["id"]) for row in found) == [
        (name, f"p{i}") for name in ("greedy", "tot", "wide") for i in range(3)
    ]
    for name in ("greedy", "tot", "wide"):
        assert len(list((out / "runs" / name / "journal").glob("*/*.journal"))) == 3
    with pytest.raises(UsageError, match="--name takes"):
        run(rows, out, "tot", job=JobOptions(name="../x"))


def test_a_folder_that_is_being_written_is_refused(write_rows, tmp_path: Path):
    rows, out = write_rows(2), tmp_path / "out"
    refused: list[str] = []

    def second(event: Event) -> None:
        if event.kind == "row" and not refused:
            with Orchestrator(**INLINE) as other:
                try:
                    other.run_batch(rows, out, "greedy")
                except UsageError as error:
                    refused.append(str(error))

    run(rows, out, on_event=second)
    assert "being written by another run" in refused[0]


def test_a_second_job_at_once_on_one_orchestrator_is_refused(write_rows, tmp_path: Path):
    rows, began, refused = write_rows(3), threading.Event(), threading.Event()

    def hold(event: Event) -> None:
        if event.kind == "start":
            began.set()
            assert refused.wait(20)

    with Orchestrator(**INLINE) as orchestrator:
        first = threading.Thread(target=orchestrator.run_batch, args=(rows, tmp_path / "a"), kwargs={"on_event": hold})
        first.start()
        assert began.wait(60)
        try:
            with pytest.raises(UsageError, match="is running a batch job"):
                orchestrator.run_batch(rows, tmp_path / "b")
        finally:
            refused.set()
            first.join()
        assert orchestrator.run_batch(rows, tmp_path / "b").rows == orchestrator.run_batch(rows, tmp_path / "a").rows


def test_shards_make_the_whole(write_rows, tmp_path: Path):
    rows, out = write_rows(7), tmp_path / "out"
    for i in range(3):
        run(rows, out, "greedy", job=JobOptions(shard=Shard(i, 3)))
    found = [json.loads(line) for path in out.glob("results.*-of-3.jsonl") for line in path.read_text().splitlines()]
    assert sorted(row["id"] for row in found) == [f"p{i}" for i in range(7)]


def test_a_timeout_per_problem_is_a_stop_reason(write_rows, read_rows, tmp_path: Path):
    slow = {"simulated": {"per_call_s": 0.05, "realtime": True}}
    run(write_rows(2), tmp_path / "out", "mcts", config=slow, budget={"seconds": 0.12})
    assert {row["stop_reason"] for row in read_rows(tmp_path / "out")} == {"seconds"}


@pytest.mark.parametrize("limit", [{"max_tokens": 700}, {"max_seconds": 0.15}])
def test_job_budgets_pause_and_the_same_call_goes_on(write_rows, read_rows, tmp_path: Path, limit: dict):
    rows, out = write_rows(10), tmp_path / "out"
    config = {"concurrency": 2, "simulated": {"per_call_s": 0.01, "realtime": True}}
    first = run(rows, out, "mcts", config=config, job=JobOptions(**limit))
    assert first.stop == next(iter(limit)).removeprefix("max_") and first.rows < 10
    if "max_tokens" in limit:
        again = run(rows, out, "mcts", config=config, job=JobOptions(**limit))
        assert first.tokens >= 700 and again.stop == "tokens"
        assert first.tokens + again.tokens < 700 + 300
    run(rows, tmp_path / "whole", "mcts", config=config)
    run(rows, out, "mcts", config=config)
    assert plain(read_rows(out)) == plain(read_rows(tmp_path / "whole"))


def test_a_job_that_has_finished_has_not_paused_whatever_it_has_used(write_rows, tmp_path: Path):
    rows, out = write_rows(3), tmp_path / "out"
    used = run(rows, out, "greedy").all_tokens
    assert run(rows, out, "greedy", job=JobOptions(max_tokens=used)).stop is None
    summaries = [run(rows, tmp_path / "b", "greedy", job=JobOptions(max_tokens=used)) for _ in range(2)]
    assert (summaries[-1].stop, summaries[-1].rows) == (None, 3)
    more = run(write_rows(4), out, "greedy", job=JobOptions(max_tokens=used))
    assert (more.stop, more.rows, more.tokens) == ("tokens", 3, 0)


def test_an_input_of_100_000_rows_gives_its_first_result_at_once_and_is_read_as_needed(tmp_path: Path, monkeypatch):
    file, stop, read, rows_read = tmp_path / "large.jsonl", Stop(), [0], []
    with file.open("w") as out:
        for i in range(100_000):
            out.write(json.dumps({"id": i, "question": f"What is {i}?"}) + "\n")
    real = formats._json_row
    monkeypatch.setattr(formats, "_json_row", lambda *a: read.__setitem__(0, read[0] + 1) or real(*a))

    def watch(event: Event) -> None:
        if event.kind == "row":
            rows_read.append(read[0])
            if len(rows_read) == 30:
                stop.set("test")

    summary = run(file, tmp_path / "out", "greedy", halt=stop, on_event=watch)
    assert rows_read[0] < 30
    assert 30 <= summary.rows <= 40 and read[0] < 60


def test_case_26_and_30_events_are_in_a_file_with_progress_and_nothing_is_printed(write_rows, tmp_path: Path, capfd):
    seen: list[Event] = []
    run(write_rows(4), tmp_path / "out", "mcts", on_event=seen.append)
    assert capfd.readouterr() == ("", "")
    events = list(read_events(tmp_path / "out/runs/mcts/events.jsonl"))
    assert [event["kind"] for event in events] == [event.kind for event in seen]
    assert {event["v"] for event in events} == {1}
    assert not any("text" in event for event in events if event["kind"] == "node")
    last = [event for event in events if event["kind"] == "progress"][-1]
    assert (last["done"], last["total"], last["running"]) == (4, 4, 0)
    assert last["tokens"] > 0 and last["tokens_per_s"] > 0 and last["best_score"] > 0 and last["reused"]["exact"] > 0
    assert sum(row["generated"] for row in last["engines"].values()) == last["tokens"]
    assert events[-1]["kind"] == "end"


def test_case_31_rows_have_seconds_by_phase_tokens_reuse_and_device_seconds(write_rows, read_rows, tmp_path: Path):
    slow = {"per_call_s": 0.02, "prefill_rate": 20_000, "realtime": True}
    run(write_rows(2), tmp_path / "out", "mcts", config={"concurrency": 2, "simulated": slow})
    for row in read_rows(tmp_path / "out"):
        seconds, tokens = row["seconds"], row["tokens"]
        assert set(seconds) >= {"queue", "prefill", "decode", "verify", "total"}
        assert row["device_seconds"] == pytest.approx(
            seconds["prefill"] + seconds["decode"] + seconds["score"], abs=1e-3
        )
        assert 0 < seconds["decode"] < seconds["total"] and 0 < seconds["queue"] < seconds["total"]
        assert seconds["prefill"] == pytest.approx(tokens["prefilled"] / 20_000, rel=0.5)
        assert tokens["generated"] > 0 and tokens["reused"]["exact"] > 0
        assert sum(engine["generated"] for engine in row["engines"].values()) == tokens["generated"]


def test_case_32_events_come_before_the_end():
    with Orchestrator(**INLINE) as orchestrator:
        stream = orchestrator.stream("What is 6 * 7?", "mcts")
        kinds = [next(stream).kind for _ in range(5)]
        assert "node" in kinds and "finish" not in kinds
        rest = list(stream)
    assert rest[-1].answer is not None and len(rest) > 5


def test_engines_stay_busy_on_a_batch_of_mixed_lengths(write_rows, tmp_path: Path):
    latency = Latency(per_call_s=0.015, step_s=0.003)
    summary = virtual.run(
        write_rows(64), tmp_path / "out", "mcts", engines=4, concurrency=16, latency=latency, depth=8, simulations=8
    )
    assert (summary.rows, summary.failed) == (64, 0)
    assert len(summary.idle) == 4
    assert 0.0 < sum(summary.idle.values()) / 4 < 0.10


@pytest.mark.parametrize("seed", [-(2**63), 2**64 - 1])
def test_every_seed_that_solve_takes_can_be_kept(write_rows, tmp_path: Path, seed: int):
    assert run(write_rows(1), tmp_path / "out", "greedy", seed=seed).failed == 0


def test_an_engine_that_was_never_called_was_idle(write_rows, tmp_path: Path):
    summary = run(write_rows(1), tmp_path / "out", "greedy", config={"engines": 3})
    assert sorted(summary.idle) == ["engine-0", "engine-1", "engine-2"]
    assert sorted(summary.idle.values())[1:] == [1.0, 1.0]
    progress = list(read_events(tmp_path / "out/runs/greedy/events.jsonl", frozenset({"progress"})))[-1]
    assert sorted(progress["idle"].values())[1:] == [1.0, 1.0]


def test_a_job_with_truth_reports_how_well_its_verifier_judged(write_rows, read_rows, tmp_path: Path):
    rows = write_rows([{"question": f"{i}?", "answer": "42"} for i in range(6)])
    summary = run(rows, tmp_path / "out", "tot", k=4, b=2, max_depth=2)
    pairs = [(score, right) for row in read_rows(tmp_path / "out") for score, right in row["judged"]]
    assert summary.auc == auc(pairs)
    assert pairs and all(0.0 <= score <= 1.0 for score, _ in pairs)
    nothing = run(write_rows(2), tmp_path / "other", "greedy")
    assert nothing.auc is None
