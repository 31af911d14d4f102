"""Case 24: every strategy has a page that says what the code does, and the example of one's own runs."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from search.strategies import registry

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "strategies.md").read_text(encoding="utf-8")
PAGES = dict(re.findall(r"^## `(\w+)`\n(.*?)(?=^## )", DOC, re.MULTILINE | re.DOTALL))
VERBS = ("Source", "Selection", "Expansion", "Simulation", "Backup", "Cost")


def test_case_24_every_strategy_has_a_page_and_every_page_a_strategy():
    assert sorted(PAGES) == registry.names()


@pytest.mark.parametrize("name", registry.names())
def test_case_24_a_page_states_each_verb_in_a_line(name):
    for verb in VERBS:
        assert len(re.findall(rf"^- {verb}: \S", PAGES[name], re.MULTILINE)) == 1, verb


@pytest.mark.parametrize("name", registry.names())
def test_case_24_a_page_lists_every_option_with_its_default(name):
    """`hints` is common to all and stands at the top."""
    listed = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", PAGES[name], re.MULTILINE))
    fields = {field.name: field.default for field in dataclasses.fields(registry.strategy_class(name))}
    fields.pop("hints")
    assert set(listed) == set(fields)
    for option, shown in listed.items():
        default = fields[option]
        expected = f"`{default}`" if isinstance(default, str) else str(default).lower()
        assert shown == expected, option


@pytest.mark.parametrize("name", registry.names())
def test_the_module_names_its_source_and_the_four_verbs(name):
    """Where the page has a paper, the module has it too."""
    module = sys.modules[registry.strategy_class(name).__module__]
    for verb in ("Selection", "Expansion", "Simulation", "Backup"):
        assert f"{verb}:" in (module.__doc__ or "")
    if name != "greedy":
        assert re.search(r"(19|20)\d\d", module.__doc__ or "")


def test_the_example_of_ones_own_is_short_and_runs():
    example = ROOT / "examples" / "own_strategy.py"
    assert len(example.read_text(encoding="utf-8").splitlines()) < 40
    pytest.importorskip("ray")
    command = [sys.executable, str(example)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"answer \d+, \d+ nodes on 2 engines, \d+ tokens\n", done.stdout)
