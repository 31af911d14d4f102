"""Ray's lifecycle: attach to a running cluster or start one on this machine, check resources, start and stop actors."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.autoscaler.sdk import request_resources
from ray.exceptions import RayError

from actors.handles import EngineHandle
from actors.membership import Sight
from actors.remote import (
    RayEngine,
    RayIndex,
    RayMetrics,
    RayReward,
    RayTransport,
    running_actors,
    start_engine,
    start_index,
    start_reward,
    tell_indexes,
)
from actors.reward import RewardSpec
from actors.spec import EngineSpec
from orchestrator.config import Config, UsageError
from orchestrator.elastic import Whereabouts, room
from orchestrator.resources import gpus_needed, require_local_gpus, too_few_gpus

logger = logging.getLogger(__name__)
_LOCAL_OBJECT_STORE = 128 << 20
_CONNECT_S = 5.0
_WHERE_S = 1.0
_LOOK_S = 10.0
"""A look that is under way is waited for so long when Ray is to end."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How many engines there will be and what each takes."""

    engines: int
    gpus_each: float
    cpus_each: float


class RayCluster:
    """A connection to Ray, and an `actors.membership.Cluster`. `close` ends our actors, and Ray if it began here."""

    def __init__(self) -> None:
        self._ours = False
        self._index: RayIndex | None = None
        self._engines: list[RayEngine] = []
        self._whereabouts = Whereabouts()
        self._begin: Callable[[str], RayEngine] | None = None
        self._each: dict[str, float] = {}
        self._most: int | None = None
        self._elastic = False
        self._looking = threading.Lock()
        """Held by a look, and for ever by `close`: a call to Ray behind its end would start another Ray."""
        self._rewards: list[RayReward] = []
        self.metrics = RayMetrics()
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

    def open(self, config: Config, spec: EngineSpec) -> tuple[list[RayEngine], RayIndex, Layout]:
        """Start the index and the engines. UsageError if the cluster cannot give what is asked for."""
        if not ray.is_initialized():
            self._connect(config)
        layout = self._layout(config)
        self.metrics.keep()
        self._index, self._most, self._elastic = start_index(), config.max_engines, config.elastic
        self._each = {"CPU": layout.cpus_each, "GPU": layout.gpus_each}
        self._begin = partial(
            start_engine,
            spec=spec,
            index=self._index,
            num_cpus=layout.cpus_each,
            num_gpus=layout.gpus_each,
            direct=_direct(config),
        )
        return [self.start(f"engine-{i}") for i in range(layout.engines)], self._index, layout

    @staticmethod
    def transport(config: Config) -> RayTransport:
        """How KV goes from one engine actor to another."""
        return RayTransport("nixl" if _direct(config) else None)

    def start_rewards(self, config: Config, spec: RewardSpec, layout: Layout) -> list[RayReward]:
        """Start the reward models, for which `start` made sure that there is room."""
        cpus = 0.0 if config.verifier_gpus else layout.cpus_each
        self._rewards = [
            start_reward(f"{config.verifier}-{i}", spec, cpus, config.verifier_gpus)
            for i in range(config.verifier_workers)
        ]
        return self._rewards

    def close(self) -> None:
        self.metrics.close()
        if not ray.is_initialized():
            return
        for handle in (*self._engines, *self._rewards, self._index):
            if handle is not None:
                handle.kill()
        self._looking.acquire(timeout=_LOOK_S)
        if self._ours:
            ray.shutdown()

    # -- `actors.membership.Cluster` -------------------------------------------------------------------------------
    async def look(self) -> Sight:
        """What Ray tells everybody: the nodes that live, and resources that are free; and what `tell_leaving` was told.

        That a node is being drained Ray tells its own parts only (`ray._private`). Without a notice engines leave when
        their node is gone and Ray found no other place for them in `elastic.LOST_S`; until then they count as down, and
        searches go on without them.
        """
        try:
            return await asyncio.to_thread(self._look)
        except (RayError, RuntimeError, OSError) as error:
            logger.warning("the cluster cannot be looked at: %s", error)
            return Sight()

    def start(self, name: str) -> RayEngine:
        if self._begin is None:
            raise RuntimeError("open the cluster first")
        engine = self._begin(name)
        self._engines.append(engine)
        return engine

    def end(self, handle: EngineHandle) -> None:
        gone = [engine for engine in self._engines if engine is handle]
        self._engines = [engine for engine in self._engines if engine is not handle]
        for engine in gone:
            engine.kill()

    def _look(self) -> Sight:
        if not self._looking.acquire(blocking=False):
            return Sight()
        try:
            return self._sight()
        finally:
            self._looking.release()

    def _sight(self) -> Sight:
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        alive = {node["NodeID"]: node["Resources"] for node in nodes if node["Alive"]}
        engines = {engine.name: engine for engine in self._engines}
        notices = self._notices()
        # Ray may have started an engine again elsewhere while the node it was on lives.
        unsure = list(engines) if notices else self._whereabouts.unsure(engines, alive)
        for name, node in _nodes_of([engines[name] for name in unsure]).items():
            self._whereabouts.note(name, node)
        going = {node["NodeID"]: left_s for node in nodes for name, left_s in notices.items() if name in _names(node)}
        leaving = {name: going[node] for node in going for name in self._whereabouts.on(node) if name in engines}
        if not self._elastic:
            return Sight(0, leaving)
        free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
        staying = [resources for node, resources in alive.items() if node not in going]
        places = room(self._each, staying, free, len(engines), self._most)
        return Sight(places, {**dict.fromkeys(self._whereabouts.lost(engines, alive), 0.0), **leaving})

    def _notices(self) -> dict[str, float]:
        """Nodes that are to leave; none while the index is down."""
        if self._index is None:
            return {}
        with suppress(RayError):
            notices: dict[str, float] = ray.get(self._index.actor.leaving.remote(), timeout=_WHERE_S)
            return notices
        return {}

    # -- parts -----------------------------------------------------------------------------------------------------
    def _connect(self, config: Config) -> None:
        """Attach to a running cluster, else start Ray here, but not for GPUs that this machine lacks."""
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if not _attached(quiet):
            if _named():
                logger.warning("no Ray cluster answers at the address given; starting one on this machine")
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
        """Impossible resources are an error before any model is loaded; an autoscaler is asked, and given time."""
        shares = [each] * count + config.verifier_shares
        need = gpus_needed(shares)
        until = time.monotonic() + config.wait_for_resources_s
        asked = False
        try:
            while (have := _resources().get("GPU", 0.0)) + 1e-6 < need:
                if time.monotonic() >= until:
                    raise UsageError(too_few_gpus(config, count, each, have, "the cluster"))
                if not asked:
                    request_resources(bundles=[{"GPU": share} for share in shares if share])
                    asked = True
                time.sleep(0.5)
        finally:
            if asked:  # the request would keep idle nodes for ever; actors that wait or run are a demand of their own
                request_resources(bundles=[])


def _direct(config: Config) -> bool:
    """Whether KV goes past the object store."""
    return config.kv_transfer == "nixl"


def _nodes_of(engines: Sequence[RayEngine]) -> dict[str, str]:
    """Ids of the nodes of those engines that say so at once."""
    asked = {engine.actor.stats.remote(): engine.name for engine in engines}
    done = ray.wait(list(asked), num_returns=len(asked), timeout=_WHERE_S)[0] if asked else []
    found: dict[str, str] = {}
    for ref in done:
        with suppress(RayError):
            found[asked[ref]] = ray.get(ref)["node_id"]
    return found


def _names(node: dict[str, Any]) -> tuple[str, ...]:
    """By what a node may be called."""
    return node["NodeID"], node["NodeManagerAddress"], node["NodeManagerHostname"]


def _auto(gpus: float, each: float, shares: list[float], cpus: float) -> int:
    """As many engines as there is room for beside the reward models' shares of GPUs."""
    if each > 0:
        return next((n for n in range(int(gpus / each), 1, -1) if gpus_needed([each] * n + shares) <= gpus), 1)
    return max(min(int(cpus), 2), 1)


def _resources() -> dict[str, float]:
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return resources


def look() -> dict[str, dict[str, Any]]:
    """What runs on the cluster that RAY_ADDRESS or `ray start` names: `stats` by actor name. NoClusterError without."""
    with _on_cluster():
        return running_actors()


def tell_leaving(node: str, seconds: float) -> dict[str, bool]:
    """Tell every orchestrator on the cluster that a node goes in `seconds`; whether it was told, by name.

    node: id, address or host name as Ray has it. UsageError for another one, and for a time that is none;
    NoClusterError without a cluster.
    """
    if not 0 <= seconds < math.inf:
        raise UsageError(f"seconds must be a finite number, 0 or more; got {seconds:g}")
    with _on_cluster():
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        alive = [_names(row) for row in nodes if row["Alive"]]
        if not any(node in names for names in alive):
            known = ", ".join(sorted({name for _, *names in alive for name in names}))
            raise UsageError(f"node {node!r} is not on the cluster; choices: {known}, or a node's id")
        return tell_indexes("leave", node, seconds)


@contextmanager
def _on_cluster() -> Iterator[None]:
    """Be on a running cluster: that of this process, or for a while the one that is named."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    here = ray.is_initialized()
    if not here and not _attached({"log_to_driver": False, "logging_level": logging.ERROR}):
        raise NoClusterError("no Ray cluster answers; start one with `ray start --head`, or name it by RAY_ADDRESS")
    try:
        yield
    finally:
        if not here:
            ray.shutdown()


class NoClusterError(Exception):
    """There is no running cluster to look at."""


def _named() -> str:
    """Address that RAY_ADDRESS or `ray start` on this machine gives, or nothing."""
    started = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    return os.environ.get("RAY_ADDRESS", "") or (started.read_text().strip() if started.is_file() else "")


def _attached(quiet: dict[str, Any]) -> bool:
    """Connect to the cluster that is named, as `ray.init()` would; False if none is, or it does not answer.

    Another program's private Ray is left alone: it ends with that program. (address="auto" would find it.)
    """
    if not (address := _named()) or not _answers(address):
        return False
    try:
        ray.init(**quiet)
    except ConnectionError:
        return False
    return True


def _answers(address: str) -> bool:
    """Whether anything listens at host:port; Ray itself would wait for minutes. True for what is no such address."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not port.isdigit():
        return True
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except OSError:
        return False
    return True
