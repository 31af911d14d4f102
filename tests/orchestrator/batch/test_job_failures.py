"""Batch jobs when something fails: engines, rows, user code, the disk, a journal."""

import errno
import gzip
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pydantic")

from engine.simulated import SimulatedEngine
from orchestrator import Orchestrator, UsageError
from orchestrator.batch.frames import append_frames
from orchestrator.batch.job import JobOptions
from orchestrator.batch.journal import StorageError, journal_path
from orchestrator.batch.records import pack
from orchestrator.batch.results import ResultsFile
from orchestrator.batch.stop import Stop
from search.strategies.base import TreeStrategy
from search.strategies.greedy import Greedy
from search.types import Event
from tests.orchestrator.batch.jobs import plain, run


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
    with Orchestrator(engine=Flaky, runtime="inline", attempts=2, concurrency=1) as orchestrator:
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
            if broken[0] and any(request.id.split("/")[1] == "p1" for request in requests):
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


def test_a_result_that_no_row_can_hold_costs_its_row_only(write_rows, read_rows, tmp_path: Path):
    class NoNumber(Greedy):
        def answer(self, tree):
            found = super().answer(tree)
            return replace(found, votes={"a": math.nan}) if tree.problem.id == "p1" else found

    rows, out = write_rows(3), tmp_path / "out"
    for retry in (False, True):  # a journal that ends with it does not stop the next process, either
        summary = run(rows, out, NoNumber(), job=JobOptions(retry_errors=retry))
        assert (summary.rows, summary.failed) == (3, 1)
        broken = {row["id"]: row.get("error") for row in read_rows(out)}
        assert "not JSON compliant" in broken["p1"] and broken["p0"] is broken["p2"] is None


def test_an_id_given_twice_is_an_error_row(write_rows, read_rows, tmp_path: Path):
    rows = write_rows([{"id": 1, "question": "a"}, {"id": 1, "question": "b"}])
    for _ in range(2):
        run(rows, tmp_path / "out", "greedy", config={"concurrency": 1})
        found = read_rows(tmp_path / "out")
        assert [("error" in row) for row in found] == [False, True]
    assert "given before" in found[1]["error"]


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


def test_no_row_is_put_behind_a_part_of_one(tmp_path: Path, monkeypatch):
    """A disk that was full for a moment: half a row is written, then nothing, then there is room again."""
    file, calls, real = tmp_path / "results.jsonl", [0], os.write

    def write(fd, data):
        calls[0] += 1
        if calls[0] == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[:10] if calls[0] == 2 else data)

    results = ResultsFile(file, "a")
    results.load()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        results.append("00", {"id": "p0"})
        for key in ("01", "02"):
            with pytest.raises(StorageError, match="No space left"):
                results.append(key, {"id": "p1"})
    results.close()
    again = ResultsFile(file, "a")
    again.load()
    again.append("01", {"id": "p1"})
    again.close()
    assert [json.loads(line)["id"] for line in file.read_text().splitlines()] == ["p0", "p1"]


def test_a_file_that_is_refused_is_let_go(tmp_path: Path):
    file = tmp_path / "results.jsonl"
    file.write_text("junk\n")
    kept = []  # refusals with their tracebacks, as a user's session has them
    for _ in range(2):
        with pytest.raises(UsageError, match="is no result row") as refused:
            ResultsFile(file, "a").load()
        kept.append(refused)
    file.write_text("")
    ResultsFile(file, "a").close()


def test_a_refused_start_leaves_neither_settings_nor_fewer_rows(write_rows, read_rows, tmp_path: Path):
    rows, out = write_rows([{"id": 1, "question": "a"}, {"id": 2, "question": ""}]), tmp_path / "out"
    out.mkdir()
    held = ResultsFile(out / "results.jsonl", "other")
    with pytest.raises(UsageError, match="being written by another run"):
        run(rows, out, "greedy", config={"temperature": 0.1})
    held.close()
    assert run(rows, out, "greedy").failed == 1
    with pytest.raises(UsageError, match="other settings: temperature"):
        run(rows, out, "greedy", config={"temperature": 0.1}, job=JobOptions(retry_errors=True))
    assert len(read_rows(out)) == 2


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

    run(rows, out, "mcts", halt=stop, on_event=pause)
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
