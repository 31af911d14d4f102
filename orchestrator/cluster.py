"""Ray's lifecycle: attach to a running cluster or start one on this machine, check resources, start and stop actors."""

from __future__ import annotations

import logging
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from actors.remote import RayEngine, RayIndex, RayReward, start_engine, start_index, start_reward
from actors.reward import RewardSpec
from actors.spec import EngineSpec
from orchestrator.config import Config, UsageError
from orchestrator.resources import gpus_needed, require_local_gpus, too_few_gpus

logger = logging.getLogger(__name__)
_LOCAL_OBJECT_STORE = 128 << 20


@dataclass(frozen=True, slots=True)
class Layout:
    """How many engines there will be and what each takes."""

    engines: int
    gpus_each: float
    cpus_each: float


class RayCluster:
    """A connection to Ray. `close` ends our actors, and Ray itself if it was started here."""

    def __init__(self) -> None:
        self._ours = False
        self._index: RayIndex | None = None
        self._engines: list[RayEngine] = []
        self._rewards: list[RayReward] = []
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

    def start(self, config: Config, spec: EngineSpec) -> tuple[list[RayEngine], RayIndex, Layout]:
        """Start the index and the engines. UsageError if the cluster cannot give what is asked for."""
        if not ray.is_initialized():
            self._connect(config)
        layout = self._layout(config)
        self._index = start_index()
        self._engines = [
            start_engine(f"engine-{i}", spec, self._index, layout.cpus_each, layout.gpus_each)
            for i in range(layout.engines)
        ]
        return self._engines, self._index, layout

    def start_rewards(self, config: Config, spec: RewardSpec, layout: Layout) -> list[RayReward]:
        """Start the reward models, for which `start` made sure that there is room."""
        cpus = 0.0 if config.verifier_gpus else layout.cpus_each
        self._rewards = [
            start_reward(f"{config.verifier}-{i}", spec, cpus, config.verifier_gpus)
            for i in range(config.verifier_workers)
        ]
        return self._rewards

    def close(self) -> None:
        if not ray.is_initialized():
            return
        for handle in (*self._engines, *self._rewards, self._index):
            if handle is not None:
                handle.kill()
        if self._ours:
            ray.shutdown()

    def _connect(self, config: Config) -> None:
        """Attach to a running cluster, else start Ray here, but not for GPUs that this machine lacks."""
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if not _attached(quiet):
            if config.gpus_per_engine or config.verifier_shares or config.device.startswith("cuda"):
                require_local_gpus(config, config.engines if isinstance(config.engines, int) else 1)
            ray.init(address="local", include_dashboard=False, object_store_memory=_LOCAL_OBJECT_STORE, **quiet)
        self._ours = True

    def _layout(self, config: Config) -> Layout:
        have = _resources()
        gpus = have.get("GPU", 0.0)
        each = config.gpus_per_engine
        if each is None:
            each = 1.0 if gpus >= 1 and config.device in ("auto", "cuda") and config.model != "simulated" else 0.0
        if config.device.startswith("cuda") and each == 0.0:
            each = 1.0
        shares = config.verifier_shares
        auto = _auto(gpus, each, shares, have.get("CPU", 1.0))
        count = config.engines if isinstance(config.engines, int) else auto
        self._require_gpus(config, count, each)
        actors = count + config.reward_models - len(shares)
        cpus = min(float(config.threads), math.floor(have.get("CPU", 1.0) / actors * 1000) / 1000)
        return Layout(count, each, max(cpus, 0.0))

    def _require_gpus(self, config: Config, count: int, each: float) -> None:
        """Impossible resources are an error before any model is loaded; an autoscaler may be given time."""
        need = gpus_needed([each] * count + config.verifier_shares)
        until = time.monotonic() + config.wait_for_resources_s
        while (have := _resources().get("GPU", 0.0)) + 1e-6 < need:
            if time.monotonic() >= until:
                raise UsageError(too_few_gpus(config, count, each, have, "the cluster"))
            time.sleep(0.5)


def _auto(gpus: float, each: float, shares: list[float], cpus: float) -> int:
    """As many engines as there is room for beside the reward models' shares of GPUs."""
    if each > 0:
        return next((n for n in range(int(gpus / each), 1, -1) if gpus_needed([each] * n + shares) <= gpus), 1)
    return max(min(int(cpus), 2), 1)


def _resources() -> dict[str, float]:
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return resources


def _attached(quiet: dict[str, Any]) -> bool:
    """Connect to the cluster that RAY_ADDRESS or `ray start` on this machine names, as `ray.init()` would.

    Another program's private Ray is left alone: it ends with that program. (address="auto" would find it.)
    """
    started = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    if not os.environ.get("RAY_ADDRESS") and not started.is_file():
        return False
    try:
        ray.init(**quiet)
    except ConnectionError:
        logger.warning("no Ray cluster answers at the address given; starting one on this machine")
        return False
    return True
