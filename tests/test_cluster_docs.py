"""docs/cluster.md, docs/batch.md and examples/slurm.sh name only commands, options, keys and files that are there."""

import re
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("ray")

from typer.main import get_command

from orchestrator.cli import app
from orchestrator.config import Config

ROOT = Path(__file__).parents[1]
TEXTS = {name: (ROOT / name).read_text() for name in ("docs/cluster.md", "docs/batch.md", "examples/slurm.sh")}
COMMAND = re.compile(r"python -m orchestrator (\w+)((?:\\\n|[^\n`|#])*)")


@pytest.mark.parametrize("name", TEXTS)
def test_commands_and_options_exist(name: str):
    commands = get_command(app).commands
    found = COMMAND.findall(TEXTS[name])
    assert found
    for command, rest in found:
        assert command in commands
        known = {option for parameter in commands[command].params for option in parameter.opts}
        assert set(re.findall(r"(?<!\S)(--[a-z-]+)", rest)) <= known, rest


def test_config_keys_exist():
    keys = {key for text in TEXTS.values() for key in re.findall(r"--set (\w+)=", text)}
    assert keys and keys <= set(Config.model_fields)
    assert {"wait_for_resources_s", "call_timeout_s"} <= set(Config.model_fields)


def test_files_and_links_exist():
    named = set(re.findall(r"`((?:examples/|docs/)?[\w.]+\.(?:yaml|sh|json))`", TEXTS["docs/cluster.md"]))
    assert {"cluster.yaml", "cluster.local.yaml", "kuberay.yaml", "examples/slurm.sh", "docs/grafana.json"} <= named
    for name in (*named, "Dockerfile"):
        assert (ROOT / name).is_file(), name
    for name in ("docs/cluster.md", "docs/batch.md"):
        for link in re.findall(r"\]\(([\w.]+\.md)", TEXTS[name]):
            assert (ROOT / "docs" / link).is_file(), link


def test_options_of_ray_and_the_shell_script_are_sound():
    text = TEXTS["examples/slurm.sh"]
    assert subprocess.run(["bash", "-n", str(ROOT / "examples" / "slurm.sh")]).returncode == 0
    from ray.scripts.symmetric_run import symmetric_run

    known = {option for parameter in symmetric_run.params for option in parameter.opts}
    (given,) = re.findall(r"ray symmetric-run (.*?) -- ", text)
    assert set(re.findall(r"--[a-z-]+", given)) <= known
    seconds = int(re.findall(r"SECONDS_A_TIME:-(\d+)", text)[0])
    hours = int(re.findall(r"--time=(\d+):00:00", text)[0])
    assert hours * 3600 - 3600 < seconds < hours * 3600 - 600
