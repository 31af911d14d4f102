"""A long input streams: the first result within seconds, memory flat while rows pass."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pydantic")

from orchestrator import Orchestrator
from tests.orchestrator.batch.jobs import INLINE

ROWS = 5000


@pytest.mark.slow
def test_5000_rows_pass_without_memory_growing(tmp_path: Path):
    """Whatever is kept of a row for good (its id and key) is far below what a row takes while it is worked on. In a
    process of its own: what other tests left of the heap decides how it grows."""
    command = [sys.executable, "-m", "bench.stream", "--rows", str(ROWS), "--out", str(tmp_path / "found.json")]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[3])
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["rows"], found["failed"]) == (ROWS, 0)
    assert found["first_result_s"] < 30
    assert found["growth_mib_second_half"] < 16


def test_engines_keep_nothing_of_finished_problems(write_rows, tmp_path: Path):
    """Not what an engine held of a branch that began elsewhere, nor what only led to questions that begin alike. The
    template that all prompts begin with may stay."""
    with Orchestrator(**INLINE, engines=2, concurrency=4) as orchestrator:
        for part in range(3):
            rows = write_rows([{"id": f"{part}-{i}", "question": f"What is {part}{i}?"} for i in range(40)])
            orchestrator.run_batch(rows, tmp_path / str(part), "mcts", simulations=4)
            for engine in orchestrator.pool.engines.values():
                tree = engine.actor.engine.tree
                tree.check_integrity()
                assert len(list(tree.segments())) <= 4 and tree.num_tokens < 200
