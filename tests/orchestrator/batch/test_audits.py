"""Audits of a calibrated verify-skip rule add up over the processes of a run, and over nothing else."""

from pathlib import Path

import pytest

pytest.importorskip("pydantic")

from engine.base import Branch
from engine.scripted import ScriptedEngine
from orchestrator import JobOptions, Orchestrator, UsageError
from orchestrator.batch.stop import Stop
from search.calibration.record import save
from tests.search.records import record

OWN = {"runtime": "inline", "concurrency": 1, "step_delimiter": None, "max_step_tokens": 256, "merged": False}
N = 6


def engine() -> ScriptedEngine:
    """Branches agree on 1, the verifier prefers the one that says 2: every skip is a flip."""
    texts = ["Answer: 1"] * 7 + ["Answer: 2"]

    def script(path, served):
        text = texts[served % 8] + " " * served
        return Branch(tuple(text.encode()), text, "eos", confidence=0.5)

    return ScriptedEngine(script, judge=lambda path, q: 0.9 if "2" in path[-1] else 0.1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Orchestrator(engine=engine, **OWN) as orchestrator:
        save(
            record(setting=orchestrator.setting, rule="agreement", thresholds={"agree_at": 0.51}),
            tmp_path / "record.json",
        )
    return tmp_path / "record.json"


def run(path: Path, rows: Path, out: Path, **call):
    options = {"k": 8, "b": 1, "max_depth": 1}
    with Orchestrator(engine=engine, cgee_record=str(path), cgee_audit=1.0, **OWN) as orchestrator:
        return orchestrator.run_batch(rows, out, "tot", **options, **call)


def test_a_process_a_row_raises_the_alarm_where_one_process_does(path: Path, write_rows, read_rows, tmp_path: Path):
    rows = write_rows(N)
    run(path, rows, tmp_path / "one")
    for i in range(1, N + 1):
        run(path, rows, tmp_path / "many", job=JobOptions(limit=i))
    one, many = ({row["id"]: row["skips"] for row in read_rows(tmp_path / name)} for name in ("one", "many"))
    assert one == many
    flips = [skips["flips"] for skips in one.values()]
    assert 1 < sum(flips) < N and [skips["off"] for skips in one.values()][-1]
    assert all(skips["decisions"] == 0 for skips in list(one.values())[sum(flips) :])


def test_a_row_that_got_no_further_than_its_journal_counts_once(path: Path, write_rows, read_rows, tmp_path: Path):
    rows, out = write_rows(N), tmp_path / "out"
    run(path, rows, out, job=JobOptions(limit=1))
    (out / "results.jsonl").write_text("")
    stop = Stop()

    def pause(event):
        if event.kind == "wave":
            stop.set("test")

    run(path, rows, out, halt=stop, on_event=pause)
    run(path, rows, out)
    run(path, rows, tmp_path / "one")
    assert [row["skips"] for row in read_rows(out)] == [row["skips"] for row in read_rows(tmp_path / "one")]


def test_a_record_is_known_by_what_it_says(path: Path, write_rows, tmp_path: Path):
    rows, out = write_rows(2), tmp_path / "out"
    run(path, rows, out, job=JobOptions(limit=1))
    moved = path.rename(tmp_path / "moved.json")
    assert run(moved, rows, out).rows == 2
    with Orchestrator(engine=engine, **OWN) as orchestrator:
        save(record(setting=orchestrator.setting, rule="agreement", thresholds={"agree_at": 0.6}), moved)
    with pytest.raises(UsageError, match="cgee_record: there"):
        run(moved, rows, out)
