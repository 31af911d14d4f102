"""Every block of the tutorial runs, in order, in one folder outside the checkout, on the project as pip installs it.

The fresh environment takes the packages the project depends on from this one; the project's own code comes from the
built wheel alone.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

pytest.importorskip("ray")

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a fresh environment, after `pip install .` in a copy of the sources."""
    source, home = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for name in ("orchestrator", "actors", "search", "engine"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    site = sysconfig.get_path("purelib", vars={"base": str(home)})
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--ignore-installed"]
    subprocess.run([*command, "--no-build-isolation", str(source)], check=True, timeout=600)
    return python


@pytest.fixture(scope="module")
def folder(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing in it."""
    return tmp_path_factory.mktemp("tutorial")


def _clean(python: Path) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**environment, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}


def test_the_code_that_runs_is_the_installed_one(python: Path, folder: Path):
    code = "import orchestrator as a, actors as b, search as c, engine as d; print(*(m.__file__ for m in (a, b, c, d)))"
    done = subprocess.run(
        [python, "-c", code], cwd=folder, env=_clean(python), capture_output=True, text=True, check=True, timeout=300
    )
    assert len(done.stdout.split()) == 4
    assert all(Path(file).is_relative_to(python.parents[1]) for file in done.stdout.split())


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_case_25_tutorial_blocks_run(python: Path, folder: Path, number: int):
    language, code = BLOCKS[number]
    command = ["bash", "-e", "-c", code] if language == "sh" else [str(python), "-c", code]
    done = subprocess.run(command, cwd=folder, env=_clean(python), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_tutorial_left_what_it_promises(folder: Path):
    assert len(BLOCKS) >= 5
    rows = (folder / "runs/demo/results.jsonl").read_text().splitlines()
    assert len(rows) == 6
    assert (folder / "runs/demo/report.html").stat().st_size > 20_000
    assert (folder / "train.jsonl").read_text().count("token_ids") > 10
