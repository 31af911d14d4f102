"""Case 69 on Ray: the driver of four engine actors is killed twice; the rows are those of an undisturbed run."""

import json
from pathlib import Path

import pytest

pytest.importorskip("ray")

from tests.orchestrator.batch.killing import assert_same_rows, generated, killed_at, start

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
N = 60


def test_killed_twice_on_four_engine_actors(tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"id": i, "question": f"What is {i} + {i}?"}) + "\n" for i in range(N)))
    assert start(rows, tmp_path / "calm", tmp_path / "calm.log").wait(300) == 0
    out, log = tmp_path / "killed", tmp_path / "killed.log"
    for target in (10, 35):
        killed_at(target, 0.02, rows, out, log, "ray")
    assert start(rows, out, log, "ray").wait(300) == 0
    assert_same_rows(tmp_path / "calm", out, N)
    # Two processes with four problems in flight each: the waves under way, of two expansions each, are lost.
    assert generated(log) <= 1.1 * generated(tmp_path / "calm.log")
