"""Every shell block of the tutorial runs, in order, in one folder outside the checkout; so does its Python."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose `python` is this one and finds the packages."""
    folder = tmp_path_factory.mktemp("tutorial")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (folder / "bin" / "python").chmod(0o755)
    return folder


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_case_25_tutorial_blocks_run(folder: Path, number: int):
    language, code = BLOCKS[number]
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    command = ["bash", "-e", "-c", code] if language == "sh" else [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_tutorial_left_what_it_promises(folder: Path):
    assert len(BLOCKS) >= 5
    rows = (folder / "runs/demo/results.jsonl").read_text().splitlines()
    assert len(rows) == 6
    assert (folder / "runs/demo/report.html").stat().st_size > 20_000
    assert (folder / "train.jsonl").read_text().count("token_ids") > 10
