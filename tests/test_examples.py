"""Every example runs from the root of the repository and prints what it promises."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pydantic")

ROOT = Path(__file__).parents[1]
SHOWN = {
    "quickstart": ["answer ", "answers: ['", " waves"],
    "batch_job": ["paused (tokens)", "20 rows, ", " 0 failed", "20 different ids", "report: "],
    "own_verifier": ["scores given: [", "tokens fed to judge: 0"],
}


def test_every_example_has_its_test_here_or_beside():
    assert set(SHOWN) <= {path.stem for path in (ROOT / "examples").glob("*.py")}


@pytest.mark.parametrize("name", SHOWN)
def test_examples_run(name: str):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, f"examples/{name}.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    for words in SHOWN[name]:
        assert words in done.stdout
