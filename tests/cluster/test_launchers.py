"""What launches a cluster, each in namespaces of its own, where `ray stop` finds what was started there and no more."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
ISOLATED = ("unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--net")
CANNOT = 77


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: Ray's socket names have at most 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="rk", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def run(*command: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")} | more
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)


def test_ray_up_submit_and_down(folder: Path):
    done = run("bash", "tests/cluster/ray_submit.sh", str(folder / "w"), sys.executable)
    if done.returncode == CANNOT:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    steps = [line.removeprefix("== ") for line in done.stdout.splitlines() if line.startswith("== ")]
    assert steps == ["up", "joined", "submitted", "down", "nothing left"]
    (result,) = [line for line in done.stdout.splitlines() if line.startswith('{"')]
    assert '"answer": ' in result and '"error": null' in result


def shim(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def test_the_slurm_job_on_one_node(folder: Path):
    assert run("bash", "-n", "examples/slurm.sh").returncode == 0
    if run(*ISOLATED, "true").returncode:
        pytest.skip("no namespaces here, and `ray symmetric-run` ends all Ray processes it sees")
    calls = folder / "calls"
    shim(folder, "srun", 'exec "$@"')
    shim(folder, "scontrol", f'echo "$*" >> {calls}; [ "$*" != "show hostnames node1" ] || echo 127.0.0.1')
    rows = folder / "rows.jsonl"
    rows.write_text('{"question": "What is 1 + 1?"}\n{"question": "What is 2 + 2?"}\n')

    def job(*options: str) -> subprocess.CompletedProcess[str]:
        inside = "ip link set lo up && exec bash examples/slurm.sh --model simulated --engines 2 --quiet"
        return run(
            *(*ISOLATED, "bash", "-c", " ".join((inside, *options))),
            PATH=f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            PYTHONPATH=str(ROOT),
            **{"HOME": str(folder), "RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"},
            **{"SLURM_JOB_NODELIST": "node1", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_ID": "17"},
            **{"INPUT": str(rows), "OUT": str(folder / "out")},
        )

    paused = job("--job-tokens", "1")
    assert paused.returncode == 75, paused.stdout[-4000:] + paused.stderr[-4000:]
    assert calls.read_text().splitlines() == ["show hostnames node1", "requeue 17"]
    done = job()
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "Running command on head node" in done.stdout
    assert len((folder / "out" / "results.jsonl").read_text().splitlines()) == 2
    assert calls.read_text().splitlines()[2:] == ["show hostnames node1"]
