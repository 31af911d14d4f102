"""Case 69: the driver is killed at random points three times; nothing finished is done again, nothing differs."""

import json
import random
from pathlib import Path

import pytest

pytest.importorskip("pydantic")

from tests.orchestrator.batch.killing import assert_same_rows, generated, killed_at, start

TIMES = 3
N = 60


@pytest.mark.slow
def test_case_69_killed_three_times_equals_an_undisturbed_run(tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    lines = [json.dumps({"id": i, "question": f"What is {i} + {i}?", "answer": i}) + "\n" for i in range(N)]
    rows.write_text("".join(lines))
    assert start(rows, tmp_path / "calm", tmp_path / "calm.log").wait(300) == 0
    out, log, draw = tmp_path / "killed", tmp_path / "killed.log", random.Random(7)
    for target in sorted(draw.sample(range(5, N - 20), TIMES)):
        killed_at(target, draw.random() * 0.05, rows, out, log)
    assert start(rows, out, log).wait(300) == 0
    assert_same_rows(tmp_path / "calm", out, N)
    assert generated(log) <= 1.05 * generated(tmp_path / "calm.log")
