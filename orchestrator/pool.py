"""Builds the driver's pool: engines in this process (`inline`) or Ray actors (`ray`); the dispatcher is the same."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from actors.dispatcher import Dispatcher, PoolOptions
from actors.handles import EngineHandle, IndexHandle, InlineEngine, InlineIndex
from actors.membership import Cluster, Membership
from actors.metering import DriverMeter
from actors.reward import InlineReward
from actors.reward_verifier import RewardVerifier
from actors.rsbcm import RSBCM
from actors.spec import EngineSpec
from actors.transfer import InlineTransport, Mover, Transport
from engine.base import Codec
from orchestrator.config import Config
from orchestrator.resources import require_local_gpus

OnFailure = Callable[[str, str], None]
_LINK_BYTES_PER_S = 2e9
_TOKEN_BYTES = 1 << 16


def start_pool(
    config: Config,
    spec: EngineSpec,
    codec: Codec,
    on_failure: OnFailure | None = None,
    reward: RewardVerifier | None = None,
    meter: DriverMeter | None = None,
    beside: Callable[[Coroutine[Any, Any, None]], object] | None = None,
) -> tuple[Dispatcher, Callable[[], None]]:
    """The pool and what closes it. reward: a verifier whose models are started with the engines. meter: told of
    outcomes and failures; its metrics go to Ray where there is one. beside: runs a coroutine for as long as there are
    searches: engines on nodes that are to leave are drained, and with `elastic` others join."""
    engines: list[EngineHandle]
    index: IndexHandle
    transport: Transport
    meter = meter or DriverMeter()
    grows: Cluster | None = None
    if config.runtime == "inline":
        engines, index = _inline(config, spec)
        transport = InlineTransport()
        if reward is not None:
            reward.connect([InlineReward(f"{reward.name}-{i}", reward.spec) for i in range(config.verifier_workers)])
        gpus, close = config.device.startswith("cuda"), _nothing
    else:
        from orchestrator.cluster import RayCluster

        cluster = RayCluster()
        try:
            remote, index, layout = cluster.open(config, spec)
            if reward is not None:
                reward.connect(cluster.start_rewards(config, reward.spec, layout))
        except BaseException:
            cluster.close()
            raise
        engines, gpus, close = list(remote), layout.gpus_each > 0, cluster.close
        transport = cluster.transport(config)
        meter.send_to(cluster.metrics)
        grows = cluster
    options = PoolOptions(
        attempts=config.attempts,
        rows_per_engine=config.rows_per_engine or (16 if gpus else 2),
        batch_rows=config.max_rows,
        call_timeout_s=config.call_timeout_s,
        placement=config.placement,
        near_roots=bool(spec.asks.tiers),
    )
    told = meter.failures(on_failure or (lambda engine, reason: None))
    mover = _mover(config, spec, transport)
    pool = Dispatcher(engines, index, codec, spec.fingerprint, spec.capabilities, options, told, mover=mover)
    pool.on_outcome = meter.outcome
    if grows is not None and beside is not None:
        beside(Membership(pool, grows, first=len(engines)).watch())
    return pool, close


def _mover(config: Config, spec: EngineSpec, transport: Transport) -> Mover:
    """Moves KV where that pays. What is assumed until the first move is fast: a slow link shows at its first move, one
    that is taken for slow never would."""
    allowed = config.kv_transfer != "off" and "kv_export" in spec.capabilities
    return Mover(transport if allowed else None, _LINK_BYTES_PER_S / (spec.kv_bytes_per_token or _TOKEN_BYTES))


def _inline(config: Config, spec: EngineSpec) -> tuple[list[EngineHandle], IndexHandle]:
    count = config.engines if isinstance(config.engines, int) else 1
    if config.device.startswith("cuda") or config.gpus_per_engine or config.verifier_shares:
        require_local_gpus(config, count)
    rsbcm = RSBCM()
    return [InlineEngine(f"engine-{i}", spec.build, rsbcm) for i in range(count)], InlineIndex(rsbcm)


def _nothing() -> None:
    return None
