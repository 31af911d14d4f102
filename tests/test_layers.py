"""What an import loads, each time in a fresh process; the contracts proper are in pyproject.toml."""

import subprocess
import sys

import pytest

IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if not found.name.endswith(".__main__"):
        importlib.import_module(found.name)
print("ray" in sys.modules)
"""

IMPORT_ORCHESTRATOR = """
import sys
import orchestrator
sys.exit("torch was imported" if "torch" in sys.modules else 0)
"""


def run_python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_every_module_of_engine_loads_no_ray() -> None:
    pytest.importorskip("torch")
    done = run_python(IMPORT_ALL, "engine")
    assert (done.stdout.strip(), done.returncode) == ("False", 0), done.stderr


def test_import_orchestrator_is_silent_and_loads_no_torch() -> None:
    pytest.importorskip("ray")
    done = run_python(IMPORT_ORCHESTRATOR)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_ray_cannot_start_in_a_unit_test() -> None:
    ray = pytest.importorskip("ray")
    with pytest.raises(RuntimeError, match="tests/cluster"):
        ray.init()
