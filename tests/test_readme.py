"""Case 25: every Python snippet of the README runs, and its file tree is true."""

import re
from pathlib import Path

import pytest

pytest.importorskip("ray")

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("snippet", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_case_25_python_snippets_run(snippet: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """A strategy that a snippet registers is gone again behind it."""
    monkeypatch.setattr("search.strategies.registry._REGISTERED", {})
    exec(compile(snippet, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_shell_snippets_name_real_targets_and_options():
    from typer.testing import CliRunner

    from orchestrator.cli import app

    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    shown = CliRunner().invoke(app, ["solve", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).output
    used = {word for line in README.splitlines() if "solve" in line for word in re.findall(r"(?<!\S)--[a-z-]+", line)}
    for option in used - {"--help", "--working-dir"}:
        assert option in shown, option


def test_the_file_tree_names_every_module_and_nothing_else():
    section = README.split("## File tree")[1]
    listed = set(re.findall(r"^(?:\| )?`([\w/]+\.py)`", section, re.MULTILINE))
    real = {
        str(path.relative_to(ROOT))
        for package in ("search", "engine", "actors", "orchestrator")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py"
    } | {"solve.py"}
    assert listed == real
