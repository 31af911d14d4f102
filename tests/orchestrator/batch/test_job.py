"""Batch jobs in this process: rows as they finish, bad rows, retries, limits, pausing and going on."""

import errno
import gzip
import json
import time
from pathlib import Path

import pytest

pytest.importorskip("pydantic")

from engine.simulated import SimulatedEngine
from orchestrator import Orchestrator, UsageError
from orchestrator.batch.events import read_events
from orchestrator.batch.frames import append_frames
from orchestrator.batch.inputs import Shard
from orchestrator.batch.job import JobOptions
from orchestrator.batch.journal import StorageError, journal_path, read_journal
from orchestrator.batch.records import pack
from orchestrator.batch.stop import Stop
from search.strategies.base import TreeStrategy
from search.types import Event

INLINE = {"model": "simulated", "runtime": "inline"}


def run(rows: Path, out: Path, strategy="tot", *, config: dict | None = None, **call):
    with Orchestrator(**{**INLINE, **(config or {})}) as orchestrator:
        return orchestrator.run_batch(rows, out, strategy, **call)


def plain(rows: list[dict]) -> dict[str, dict]:
    """Rows by id without what may differ between equal runs: who did it, and how long it took."""
    drop = ("engines", "seconds", "tokens", "key")
    return {row["id"]: {k: v for k, v in row.items() if k not in drop} for row in rows}


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


def test_case_72_the_first_row_is_on_disk_before_the_second_problem_ends(write_rows, read_rows, tmp_path: Path):
    seen: list[int] = []

    def watch(event: Event) -> None:
        if event.kind == "row":
            seen.append(len(read_rows(tmp_path / "out")))

    run(write_rows(10), tmp_path / "out", "greedy", config={"concurrency": 1}, on_event=watch)
    assert seen == list(range(1, 11))


def test_case_69_finished_rows_are_skipped_and_half_grown_trees_go_on(write_rows, read_rows, tmp_path: Path):
    rows, out = write_rows(12), tmp_path / "out"
    whole = run(rows, tmp_path / "whole", "mcts")
    stop, total, waves = Stop(), 0, [0]

    def pause(event: Event) -> None:
        waves[0] += event.kind == "wave"
        if waves[0] == 9:
            stop.set("test")

    first = run(rows, out, "mcts", config={"concurrency": 3}, stop=stop, on_event=pause)
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


def test_infrastructure_failures_are_retried_with_a_bound_and_bad_data_is_not(write_rows, read_rows, tmp_path: Path):
    calls: list[str] = []

    class Flaky(SimulatedEngine):
        def expand(self, requests):
            name = requests[0].id.split("/")[1]
            calls.append(name)
            if name == "p0" or (name == "p1" and calls.count(name) <= 4):
                raise RuntimeError("device lost")
            return super().expand(requests)

    rows = write_rows([*({"id": f"p{i}", "question": f"{i}?"} for i in range(3)), {"id": "bad", "question": ""}])
    with Orchestrator(engine=Flaky, runtime="inline", attempts=2) as orchestrator:
        summary = orchestrator.run_batch(rows, tmp_path / "out", "greedy", job=JobOptions(retries=2))
    found = {row["id"]: row for row in read_rows(tmp_path / "out")}
    assert calls.count("p0") == 2 * 3
    assert "device lost" in found["p0"]["error"] and found["p0"]["tries"] == 3
    assert found["p1"]["answer"] is not None and found["p2"]["answer"] is not None
    assert (summary.failed, summary.rows, "tries" in found["bad"]) == (2, 4, False)


def test_retry_errors_does_failed_rows_again_and_replaces_them(write_rows, read_rows, tmp_path: Path):
    rows, out = write_rows(3), tmp_path / "out"
    broken = [True]

    class Flaky(SimulatedEngine):
        def expand(self, requests):
            if broken[0] and requests[0].id.split("/")[1] == "p1":
                raise RuntimeError("device lost")
            return super().expand(requests)

    with Orchestrator(engine=Flaky, runtime="inline", attempts=1) as orchestrator:
        assert orchestrator.run_batch(rows, out, "greedy").failed == 1
        broken[0] = False
        assert orchestrator.run_batch(rows, out, "greedy").failed == 1
        assert orchestrator.run_batch(rows, out, "greedy", job=JobOptions(retry_errors=True)).failed == 0
    assert sorted(row["id"] for row in read_rows(out)) == ["p0", "p1", "p2"]
    assert not any("error" in row for row in read_rows(out))


def test_a_strategy_that_raises_costs_its_rows_only(write_rows, read_rows, tmp_path: Path):
    class Raises(TreeStrategy):
        name = "raises"
        judges = False

        def ask(self, tree, capacity):
            if tree.problem.id == "p1":
                raise KeyError("broken")
            return [] if tree.asked else [tree.expansion(tree.root, 1)]

    run(write_rows(3), tmp_path / "out", Raises())
    found = {row["id"]: row.get("error") for row in read_rows(tmp_path / "out")}
    assert found == {"p0": None, "p1": "KeyError: 'broken'", "p2": None}


def test_an_id_given_twice_is_an_error_row(write_rows, read_rows, tmp_path: Path):
    rows = write_rows([{"id": 1, "question": "a"}, {"id": 1, "question": "b"}])
    for _ in range(2):
        run(rows, tmp_path / "out", "greedy", config={"concurrency": 1})
        found = read_rows(tmp_path / "out")
        assert [("error" in row) for row in found] == [False, True]
    assert "given before" in found[1]["error"]


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


@pytest.mark.parametrize("where", ["journal", "results", "events"])
def test_a_full_disk_is_a_clean_error_and_the_job_goes_on_later(write_rows, read_rows, tmp_path, monkeypatch, where):
    rows, out = write_rows(6), tmp_path / "out"
    full = OSError(errno.ENOSPC, "No space left on device")
    count = [0]

    def after(real, at):
        def call(*args, **kwargs):
            count[0] += 1
            if count[0] > at:
                raise full
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        if where == "journal":
            from orchestrator.batch import journal

            patch.setattr(journal, "append_frames", after(journal.append_frames, 7))
        elif where == "results":
            from orchestrator.batch import results

            patch.setattr(results.os, "write", after(results.os.write, 9))
        else:
            from orchestrator.batch import events

            patch.setattr(events.json, "dumps", after(events.json.dumps, 40))
        if where == "events":
            with pytest.raises(OSError, match="No space left"):
                run(rows, out, "mcts", config={"concurrency": 2})
        else:
            with pytest.raises(StorageError, match="No space left"):
                run(rows, out, "mcts", config={"concurrency": 2})
    run(rows, out, "mcts")
    run(rows, tmp_path / "whole", "mcts")
    assert plain(read_rows(out)) == plain(read_rows(tmp_path / "whole"))


def test_an_unwritable_folder_is_a_usage_error_before_engines_start(write_rows, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("orchestrator.orchestrator.start_pool", lambda *a, **k: pytest.fail("engines were started"))
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        run(write_rows(1), tmp_path / "file" / "out")
    with pytest.raises(UsageError, match="limit"):
        JobOptions(limit=0)
    with pytest.raises(UsageError, match="no such file"):
        run(tmp_path / "gone.jsonl", tmp_path / "out")


def test_a_damaged_journal_keeps_what_is_whole_and_the_row_says_so(write_rows, read_rows, tmp_path: Path):
    rows, out = write_rows(1), tmp_path / "out"
    run(rows, tmp_path / "whole", "mcts")
    waves, stop = [0], Stop()

    def pause(event: Event) -> None:
        waves[0] += event.kind == "wave"
        if waves[0] == 2:
            stop.set("test")

    run(rows, out, "mcts", stop=stop, on_event=pause)
    path = journal_path(out / "runs/mcts/journal", "p0")
    data = bytearray(path.read_bytes())
    data[-20] ^= 4
    path.write_bytes(data)
    run(rows, out, "mcts")
    row, whole = read_rows(out)[0], read_rows(tmp_path / "whole")[0]
    assert "damaged" in row["warnings"][0] and "checksum" in row["warnings"][0]
    assert {**row, "warnings": []}["text"] == whole["text"] and row["answer"] == whole["answer"]
    assert path.with_suffix(".damaged").exists()


def test_a_journal_of_another_version_is_an_error_row_that_names_both(write_rows, read_rows, tmp_path: Path):
    rows, out = write_rows(2), tmp_path / "out"
    path = journal_path(out / "runs/greedy/journal", "p0")
    path.parent.mkdir(parents=True)
    append_frames(path, [pack({"kind": "header", "schema": 7})], 0)
    run(rows, out, "greedy")
    errors = {row["id"]: row.get("error") for row in read_rows(out)}
    assert "schema version 7, this program reads version 1" in errors["p0"] and errors["p1"] is None


def test_an_input_that_ends_too_early_pauses_the_job(tmp_path: Path, read_rows):
    file = tmp_path / "rows.jsonl.gz"
    rows = "".join(json.dumps({"question": f"What is {i}? {i * 7919 % 1009}"}) + "\n" for i in range(2000))
    file.write_bytes(gzip.compress(rows.encode())[:-3000])
    with pytest.raises(StorageError, match="cannot be read to its end"):
        run(file, tmp_path / "out", "greedy")
    assert len(read_rows(tmp_path / "out")) > 100


def test_a_callback_that_raises_ends_the_job_with_its_own_error(write_rows, tmp_path: Path):
    def bad(event: Event) -> None:
        if event.kind == "row":
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(write_rows(5), tmp_path / "out", "greedy", on_event=bad)
    assert run(write_rows(5), tmp_path / "out", "greedy").rows == 5


def test_an_input_of_100_000_rows_gives_its_first_result_at_once_and_is_read_as_needed(tmp_path: Path, monkeypatch):
    file, stop, read, first = tmp_path / "large.jsonl", Stop(), [0], []
    with file.open("w") as out:
        for i in range(100_000):
            out.write(json.dumps({"id": i, "question": f"What is {i}?"}) + "\n")
    from orchestrator.batch import formats

    real = formats._json_row
    monkeypatch.setattr(formats, "_json_row", lambda *a: read.__setitem__(0, read[0] + 1) or real(*a))

    def watch(event: Event) -> None:
        if event.kind == "row":
            first.append(time.monotonic())
            if len(first) == 30:
                stop.set("test")

    began = time.monotonic()
    summary = run(file, tmp_path / "out", "greedy", stop=stop, on_event=watch)
    assert first[0] - began < 5
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
    slow = {"depth": 8, "step_s": 0.001, "per_call_s": 0.005, "realtime": True}
    config = {"engines": 4, "concurrency": 16, "simulated": slow}
    summary = run(write_rows(64), tmp_path / "out", "mcts", config=config, simulations=8)
    assert len(summary.idle) == 4
    assert sum(summary.idle.values()) / 4 < 0.10
