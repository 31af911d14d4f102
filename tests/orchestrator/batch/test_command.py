"""`run` and `status` on the command line: exit codes, signals, progress lines, what standard output holds."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("typer")

from orchestrator.batch.events import EventLog, last_event
from orchestrator.batch.live import JobProgress
from orchestrator.batch.view import clock, plain_line, table
from orchestrator.cli import main
from search.types import Event
from tests.orchestrator.batch.jobs import run as job

ROOT = Path(__file__).parents[3]
SIMULATED = ("--model", "simulated", "--runtime", "inline")
PROGRESS = {
    "total": 10, "done": 3, "failed": 1, "skipped": 2, "correct": 2, "wrong": 1, "running": 4, "nodes": 50,
    "tokens": 1000, "prefilled": 300, "verified": 70, "saved": 5, "reused": {"exact": 700}, "tokens_per_s": 99.6,
    "seconds": 10.0, "eta_s": 3725.0, "best_score": 0.91, "idle": {"engine-0": 0.25},
    "engines": {"engine-0": {"expansions": 9, "generated": 1000}},
}  # fmt: skip


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_exit_codes(capsys, write_rows, tmp_path: Path):
    rows = write_rows(3)
    code, out, err = call(capsys, "run", rows, "--out", tmp_path / "a", *SIMULATED)
    assert (code, err) == (0, "") and out.startswith("3 rows, 0 failed, 0 done before")
    mixed = write_rows([{"question": "a"}, {"question": ""}], "mixed.jsonl")
    code, out, err = call(capsys, "run", mixed, "--out", tmp_path / "b", *SIMULATED)
    assert code == 1 and "error: problem 2: problem is empty" in err
    bad = write_rows([{"question": ""}], "bad.jsonl")
    assert call(capsys, "run", bad, "--out", tmp_path / "c", *SIMULATED, "-q")[0] == 3
    code, out, _ = call(capsys, "run", rows, "--out", tmp_path / "d", *SIMULATED, "-q", "--job-tokens", 1)
    assert code == 75 and json.loads(out)["stop"] == "tokens"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gone.jsonl"], ["no such file", "'gone.jsonl'"]),
        (["ROWS", "--strategy", "totx"], ["'totx'", "did you mean 'tot'"]),
        (["ROWS", "-o", "on_event=3"], ["no option 'on_event'"]),
        (["ROWS", "--shard", "2/2"], ["--shard", "'2/2'"]),
        (["ROWS", "--limit", "0"], ["limit", "at least 1"]),
        (["ROWS", "--retries", "-1"], ["retries", "at least 0"]),
        (["ROWS", "--job-seconds", "0"], ["max_seconds", "positive"]),
        (["ROWS", "--timeout-per-problem", "0"], ["budget seconds", "positive"]),
        (["ROWS", "--question", "prompt"], ["'prompt'", "id, question, answer"]),
        (["ROWS", "--name", "a/b"], ["--name", "'a/b'"]),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(capsys, write_rows, tmp_path: Path, monkeypatch, arguments, words):
    monkeypatch.setattr("orchestrator.orchestrator.start_pool", lambda *a, **k: pytest.fail("engines were started"))
    arguments = [str(write_rows(1)) if word == "ROWS" else word for word in arguments]
    code, out, err = call(capsys, "run", *arguments, "--out", tmp_path / "out", *SIMULATED)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and all(word in err for word in words)


def test_an_empty_folder_name_is_no_folder(capsys, write_rows, tmp_path: Path, monkeypatch):
    rows = write_rows(1)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    code, out, err = call(capsys, "run", rows, "--out", "", *SIMULATED)
    assert (code, out) == (2, "") and "--out is empty" in err
    assert not list((tmp_path / "here").iterdir())


def test_options_reach_the_run(capsys, write_rows, tmp_path: Path):
    config = tmp_path / "run.yaml"
    config.write_text("model: simulated\nruntime: inline\nmax_step_tokens: 9\n")
    rows = write_rows([{"nr": i, "text": f"{i}?", "gold": 1} for i in range(6)])
    columns = ("--question", "text", "--answer", "gold", "--id", "nr")
    more = ("--limit", 5, "--shard", "1/2", "--nodes", 4, "-o", "simulations=9", "--seed", 5)
    out = tmp_path / "out"
    arguments = ("--strategy", "mcts", "--config", config, *columns, *more)
    code, _, _ = call(capsys, "run", rows, "--out", out, *arguments)
    assert code == 0
    found = [json.loads(line) for line in (out / "results.1-of-2.jsonl").read_text().splitlines()]
    assert sorted(row["id"] for row in found) == ["1", "3"]
    assert {(row["stop_reason"], row["seed"], row["strategy"]) for row in found} == {("nodes", 5, "mcts")}
    settings = json.loads((out / "runs/mcts.1-of-2/run.json").read_text())["settings"]
    assert (settings["max_step_tokens"], settings["strategy.simulations"], settings["budget.nodes"]) == (9, 9, 4)


def test_a_strategys_option_may_be_called_as_an_argument_of_the_job(capsys, write_rows, tmp_path: Path):
    arguments = ("--strategy", "self_consistency", "-o", "stop=window", *SIMULATED, "-q")
    assert call(capsys, "run", write_rows(2), "--out", tmp_path / "out", *arguments)[0] == 0
    settings = json.loads((tmp_path / "out/runs/self_consistency/run.json").read_text())["settings"]
    assert settings["strategy.stop"] == "window"
    summary = job(write_rows(2), tmp_path / "python", "self_consistency", stop="none")
    assert (summary.rows, summary.stop) == (2, None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_wave_and_the_same_command_goes_on(write_rows, read_rows, tmp_path: Path, number):
    rows, out = write_rows(40), tmp_path / "out"
    slow = ("--set", "simulated={per_call_s: 0.02, realtime: true}", "--strategy", "mcts", "--concurrency", "2")
    command = [sys.executable, "-m", "orchestrator", "run", str(rows), "--out", str(out), *SIMULATED, *slow]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not ((out / "results.jsonl").exists() and read_rows(out)):
        time.sleep(0.02)
    process.send_signal(number)
    text, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (75, "")
    assert "paused (signal): the same command goes on" in text
    assert 0 < len(read_rows(out)) < 40
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)
    assert done.returncode == 0 and len(read_rows(out)) == 40


def test_case_26_status_from_another_shell(capsys, write_rows, tmp_path: Path):
    out = tmp_path / "out"
    assert call(capsys, "status", tmp_path)[0] == 2
    call(capsys, "run", write_rows(4), "--out", out, *SIMULATED, "-q")
    call(capsys, "run", write_rows(4), "--out", out, *SIMULATED, "-q", "--strategy", "mcts", "--job-tokens", 1)
    with pytest.raises(SystemExit):
        main(["status", str(out), "--watch"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("mcts: problem ") and lines[0].endswith("paused (tokens)")
    assert lines[1].startswith("tot: problem 4/4, 0 failed") and lines[1].endswith("ended")
    events = out / "runs/tot/events.jsonl"
    kept = [line for line in events.read_text().splitlines() if '"end"' not in line]
    events.write_text("\n".join(kept) + '\n{"torn')
    code, text, _ = call(capsys, "status", out, "--name", "tot")
    assert code == 0 and ("; running" in text or "killed?" in text)


def test_the_last_progress_is_found_however_far_from_the_end_it_is(tmp_path: Path, monkeypatch):
    file = tmp_path / "events.jsonl"
    log = EventLog(file, clock=lambda: 5.0)
    log.write("progress", None, {"done": 1})
    log.write("progress", None, {"done": 2})
    for i in range(4000):
        log.write("node", "p0", {"node": f"r.{i}", "note": "x" * 100})
    log.close()
    found = last_event(file, frozenset({"begin", "progress"}))
    assert found is not None and found["done"] == 2
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:4]) + b'{"v": 1, "kind": "progress"')
    for size in range(1, 300):
        monkeypatch.setattr("orchestrator.batch.events._PIECE", size)
        assert last_event(file, frozenset({"progress"})) == found
        assert last_event(file, frozenset({"end"})) is None


def test_the_plain_line_and_the_table_say_what_matters():
    line = plain_line("tot", PROGRESS)
    assert line == (
        "tot: problem 6/10, 1 failed, 4 running, 50 nodes, 1000 tokens, 100 tok/s, ETA 1:02:05, best score 0.910"
    )
    from rich.console import Console

    console = Console(file=io.StringIO(), width=120)
    console.print(table("tot\x1b[31m", PROGRESS))
    shown = console.file.getvalue()
    for words in ("6/10 done, 1 failed, 4 running, 2/3 correct", "70% exact", "75% busy", "5 verifications skipped"):
        assert words in shown
    assert "\x1b" not in shown
    assert clock(None) == "?"


def test_progress_is_a_line_every_few_seconds_where_there_is_no_terminal():
    now, stream = [0.0], io.StringIO()
    with JobProgress("tot", stream, lambda: now[0]) as progress:
        for _ in range(10):
            now[0] += 1.0
            progress.on_event(Event("progress", "", now[0], PROGRESS))
        progress.on_event(Event("row", "p\x1b[2J", 0.0, {"error": "bad \x1b[31m news"}))
    lines = stream.getvalue().splitlines()
    assert len([line for line in lines if line.startswith("tot: problem")]) == 3
    assert lines[-1].startswith("error: problem p") and "\x1b" not in lines[-1]
