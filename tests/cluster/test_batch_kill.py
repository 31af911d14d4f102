"""Case 69 on Ray: the driver of four engine actors is killed at random points five times; nothing is lost but orders
in flight."""

import json
import random
from pathlib import Path

import pytest

pytest.importorskip("ray")

from tests.orchestrator.batch.killing import assert_same_rows, generated, killed_at, start

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
N, TIMES = 200, 5


def test_case_69_killed_five_times_on_four_engine_actors(cluster: str, tmp_path: Path, monkeypatch):
    """Each driver is a job of one cluster, and takes its actors along when it is killed."""
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"id": i, "question": f"What is {i} + {i}?"}) + "\n" for i in range(N)))
    assert start(rows, tmp_path / "calm", tmp_path / "calm.log").wait(600) == 0
    out, log, draw = tmp_path / "killed", tmp_path / "killed.log", random.Random(11)
    for target in sorted(draw.sample(range(5, N - 20), TIMES)):
        killed_at(target, draw.random() * 0.05, rows, out, log, "ray")
    assert start(rows, out, log, "ray").wait(600) == 0
    assert_same_rows(tmp_path / "calm", out, N)
    share = generated(log) / generated(tmp_path / "calm.log")
    print(f"tokens of six processes: {share:.4f} of one pass")
    assert 1.0 <= share <= 1.05
