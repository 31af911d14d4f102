"""Case 69: the driver is killed at random points five times; nothing finished is done again, nothing differs."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pydantic")

ROOT = Path(__file__).parents[3]
DRIVER = Path(__file__).with_name("driver.py")
TIMES = 5
N = 200
COMPARED = ("answer", "text", "correct", "complete", "stop_reason", "votes", "node", "unused", "warnings")


def start(rows: Path, out: Path, log: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, str(DRIVER), str(rows), str(out), str(log)], cwd=ROOT, env=environment)


def results(out: Path) -> dict[str, dict]:
    """Whole rows by id; each id once."""
    data = (out / "results.jsonl").read_bytes() if (out / "results.jsonl").exists() else b""
    rows = [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row for row in rows}


def generated(log: Path) -> int:
    return sum(int(line.split()[1]) for line in log.read_text().splitlines())


@pytest.mark.slow
def test_case_69_killed_five_times_equals_an_undisturbed_run(tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"id": i, "question": f"What is {i} + {i}?", "answer": i}) + "\n" for i in range(N))
    )
    assert start(rows, tmp_path / "calm", tmp_path / "calm.log").wait(300) == 0
    calm = results(tmp_path / "calm")
    assert len(calm) == N

    out, log, draw = tmp_path / "killed", tmp_path / "killed.log", random.Random(7)
    targets = sorted(draw.sample(range(5, N - 20), TIMES))
    for target in targets:
        finished = results(out)
        seen = len(log.read_text().splitlines()) if log.exists() else 0
        process = start(rows, out, log)
        deadline = time.monotonic() + 120
        while process.poll() is None and len(results(out)) < target and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(draw.random() * 0.05)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        again = {line.split("/")[0] for line in log.read_text().splitlines()[seen:]}
        assert not again & set(finished)
    assert start(rows, out, log).wait(300) == 0

    killed = results(out)
    assert set(killed) == set(calm)
    for name, row in calm.items():
        assert {key: killed[name][key] for key in COMPARED} == {key: row[key] for key in COMPARED}
        assert killed[name]["tokens"]["generated"] == row["tokens"]["generated"]
    assert generated(log) <= 1.05 * generated(tmp_path / "calm.log")
