"""`import search` loads no device code, no Ray: every module of the package, each time in a fresh process."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "ray", "transformers")

IMPORT_ONE = """
import importlib, sys
importlib.import_module(sys.argv[1])
print(*(name for name in sys.argv[2:] if name in sys.modules))
"""

IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if not found.name.endswith(".__main__"):
        importlib.import_module(found.name)
print(*(name for name in sys.argv[2:] if name in sys.modules))
"""


def loaded(code: str, module: str) -> str:
    command = [sys.executable, "-c", code, module, *HEAVY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["search", "search.answers"])
def test_import_is_light(module: str) -> None:
    assert loaded(IMPORT_ONE, module) == ""


def test_every_module_of_search_is_light() -> None:
    assert loaded(IMPORT_ALL, "search") == ""


def test_the_probe_sees_a_heavy_module() -> None:
    assert loaded("import sys; sys.modules['ray'] = sys\n" + IMPORT_ONE, "search") == "ray"
