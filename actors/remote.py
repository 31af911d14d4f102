"""The plain actor classes on Ray, and handles that classify Ray's errors once."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util import metrics as ray_metrics

from actors.block_index import LEASE_S
from actors.engine_actor import EngineActor
from actors.handles import EngineDownError, EngineFailedError, EngineHandle, IndexDownError
from actors.messages import Reply
from actors.metrics import METRICS, EngineMeter
from actors.names import PREFIX, engine_name, new_session, session_of
from actors.placement import Placed
from actors.placer import Assignment
from actors.reward import RewardActor, RewardSpec
from actors.rsbcm import RSBCM, Scored
from actors.spec import EngineSpec
from engine.solution import RewardQuery, Rewards
from search.types import Expansion, Outcome, Score, ScoreRequest

T = TypeVar("T")
_PUBLISH_S = 5.0
_INDEX_S = 5.0
_SCORES = 16
_RESTART_S = 120.0
_RETRY_S = 0.2
_METER_S = 1.0
_STATS_S = 5.0
_LASTING = {"max_restarts": -1, "max_task_retries": 0}
"""An actor that Ray starts again; trying calls again is the caller's business."""


class RayMetrics:
    """`actors.metrics.Metrics` by `ray.util.metrics`: what Ray's nodes export for Prometheus. Thread-safe.

    Ray forgets a gauge that is not set again within two reports: `refresh` sets them all again, `keep` does so in a
    thread until `close`.
    """

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}
        self._gauges: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._keeper: threading.Thread | None = None

    def count(self, name: str, amount: float, **tags: str) -> None:
        if amount > 0:
            self._metric(name).inc(amount, tags)

    def set(self, name: str, value: float, **tags: str) -> None:
        self._metric(name).set(value, tags)
        self._gauges[name, frozenset(tags.items())] = value

    def refresh(self) -> None:
        for (name, tags), value in list(self._gauges.items()):
            self._metric(name).set(value, dict(tags))

    def keep(self) -> None:
        def work() -> None:
            while not self._closed.wait(_METER_S):
                self.refresh()

        self._keeper = threading.Thread(target=work, name="metrics", daemon=True)
        self._keeper.start()

    def close(self) -> None:
        self._closed.set()
        if self._keeper is not None:
            self._keeper.join()

    def observe(self, name: str, value: float, **tags: str) -> None:
        self._metric(name).observe(value, tags)

    def _metric(self, name: str) -> Any:
        with self._lock:
            if name not in self._made:
                known = METRICS[name]
                kinds: Mapping[str, Any] = {"counter": ray_metrics.Counter, "gauge": ray_metrics.Gauge}
                if known.kind == "histogram":
                    made = ray_metrics.Histogram(name, known.text, list(known.bounds), known.tags)
                else:
                    made = kinds[known.kind](name, known.text, known.tags)
                self._made[name] = made
            return self._made[name]


class _RemoteEngine(EngineActor):
    """Calls of several problems run in threads and share the engine's batch; control calls have their own threads."""

    def __init__(self, name: str, spec: EngineSpec, index_name: str, driver: str) -> None:
        index: list[Any] = []

        def publish(data: bytes) -> Reply:
            if not index:
                index.append(ray.get_actor(index_name))
            reply: Reply = ray.get(index[0].apply.remote(data), timeout=_PUBLISH_S)
            return reply

        super().__init__(name, spec.build, publish, background=True)
        self._driver = driver
        self._calls = 0
        threading.Thread(target=self._meter, name="metrics", daemon=True).start()

    def _meter(self) -> None:
        """Publish metrics for as long as the process lives."""
        meter = EngineMeter(RayMetrics(), self.name)
        while True:
            meter.update(self._numbers())
            time.sleep(_METER_S)

    def _numbers(self) -> dict[str, Any]:
        """An engine that takes one call at a time has no queue of its own: further calls wait for it."""
        return {"waiting": max(self._calls - 1, 0), **super().stats()}

    @ray.method(concurrency_group="work")
    def expand(self, orders: Sequence[Expansion], token: str) -> list[Outcome]:  # type: ignore[override]
        self._calls += 1
        try:
            return super().expand(orders, token)
        finally:
            self._calls -= 1

    @ray.method(concurrency_group="score")
    def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:  # type: ignore[override]
        return super().score(requests)

    @ray.method(concurrency_group="move")
    def export_kv(self, key: bytes, start: int = 0) -> bytes:  # type: ignore[override]
        return super().export_kv(key, start)

    @ray.method(concurrency_group="move")
    def import_kv(self, data: bytes) -> int:  # type: ignore[override]
        return super().import_kv(data)

    @ray.method(concurrency_group="move")
    def export_parcel(self, key: bytes, start: int) -> Any:
        """As `export_kv`, in tensors, which Ray sends directly."""
        engine: Any = self.engine
        return engine.export_parcel(key, start)

    @ray.method(concurrency_group="move")
    def import_parcel(self, parcel: Any) -> int:
        engine: Any = self.engine
        held: int = engine.import_parcel(parcel)
        self._announce()
        return held

    @ray.method(concurrency_group="ctl")
    def note_scores(self, items: Sequence[tuple[bytes, float, int]]) -> None:  # type: ignore[override]
        super().note_scores(items)

    @ray.method(concurrency_group="ctl")
    def cancel(self, ids: Sequence[str]) -> None:  # type: ignore[override]
        super().cancel(ids)

    @ray.method(concurrency_group="ctl")
    def ping(self) -> int:  # type: ignore[override]
        return super().ping()

    @ray.method(concurrency_group="ctl")
    def stats(self) -> dict[str, Any]:  # type: ignore[override]
        node: str = ray.get_runtime_context().get_node_id()
        where = {"node": _here(), "node_id": node, "driver": self._driver}
        return {**self._numbers(), **where, "incarnation": self.incarnation}


def _here() -> str:
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


def start_index() -> RayIndex:
    """An index actor that takes no CPU of the engines."""
    name = new_session()
    return RayIndex(name, ray.remote(RSBCM).options(name=name, num_cpus=0, **_LASTING).remote(lease_s=LEASE_S))


def start_engine(
    name: str, spec: EngineSpec, index: RayIndex, num_cpus: float, num_gpus: float, direct: bool = False
) -> RayEngine:
    """An engine actor, named behind its index. direct: for a `RayTransport` that goes past the object store."""
    decorate: Any = ray.remote
    groups = {"work": spec.calls, "score": _SCORES, "ctl": 2, "move": 2}
    remote = decorate(concurrency_groups=groups, enable_tensor_transport=direct)(_RemoteEngine)
    options = {"num_cpus": num_cpus, "num_gpus": num_gpus, **_LASTING}
    # In order, a call whose argument is another engine's would hold up all later ones while that engine hangs.
    options["allow_out_of_order_execution"] = True
    driver = f"{_here()}:{os.getpid()}"
    actor = remote.options(name=engine_name(index.name, name), **options).remote(name, spec, index.name, driver)
    return RayEngine(name, actor, spec.concurrent)


def running_actors() -> dict[str, dict[str, Any]]:
    """`stats` of every index and engine on the cluster by actor name, `{"state": why}` of one that does not answer."""
    asked: dict[str, Any] = {}
    rows: dict[str, dict[str, Any]] = {}
    for name, namespace in _named_actors().items():
        try:
            asked[name] = ray.get_actor(name, namespace=namespace).stats.remote()
        except (ValueError, RayError) as error:
            rows[name] = {"state": f"gone: {_first_line(error)}"}
    ray.wait(list(asked.values()), num_returns=len(asked), timeout=_STATS_S) if asked else None
    for name, ref in asked.items():
        try:
            rows[name] = {"state": "up", **ray.get(ref, timeout=0)}
        except GetTimeoutError:
            rows[name] = {"state": f"no answer in {_STATS_S:g} s"}
        except RayError as error:
            rows[name] = {"state": f"down: {_first_line(error)}"}
    return rows


def tell_indexes(method: str, *args: Any) -> dict[str, bool]:
    """Call a method of every index on the cluster; whether it answered, by name."""
    indexes = {name: namespace for name, namespace in _named_actors().items() if not session_of(name)[1]}
    answered = dict.fromkeys(indexes, False)
    asked: dict[Any, str] = {}
    for name, namespace in indexes.items():
        with suppress(ValueError, RayError):
            asked[getattr(ray.get_actor(name, namespace=namespace), method).remote(*args)] = name
    for ref in ray.wait(list(asked), num_returns=len(asked), timeout=_STATS_S)[0] if asked else ():
        with suppress(RayError):
            ray.get(ref)
            answered[asked[ref]] = True
    return answered


def _named_actors() -> dict[str, str]:
    """Namespaces of the indexes and engines on the cluster, by name; engines: `rksc-index-....engine-0`."""
    rows = ray.util.list_named_actors(all_namespaces=True)
    return dict(sorted((row["name"], row["namespace"]) for row in rows if row["name"].startswith(PREFIX)))


def start_reward(name: str, spec: RewardSpec, num_cpus: float, num_gpus: float) -> RayReward:
    """An actor of a reward model."""
    options = {"num_cpus": num_cpus, "num_gpus": num_gpus, **_LASTING}
    return RayReward(name, ray.remote(RewardActor).options(**options).remote(spec))


class _RayActor:
    """Handle of an actor that answers `ping` and `stats`."""

    killable = True

    def __init__(self, name: str, actor: Any) -> None:
        self._name = name
        self.actor = actor

    @property
    def name(self) -> str:
        return self._name

    async def ready(self) -> int:
        """Waits for a restart that is under way; an engine that cannot start is an EngineFailedError."""
        deadline = time.monotonic() + _RESTART_S
        while True:
            try:
                return await _engine_call(self.actor.ping.remote())
            except EngineDownError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_RETRY_S)

    async def restart(self) -> None:
        ray.kill(self.actor, no_restart=False)

    async def stats(self) -> dict[str, Any]:
        return await _engine_call(self.actor.stats.remote())

    def kill(self) -> None:
        ray.kill(self.actor)


class RayReward(_RayActor):
    """Handle of a reward model's actor."""

    async def score(self, queries: Sequence[RewardQuery]) -> list[Rewards]:
        return await _engine_call(self.actor.score.remote(list(queries)))


class RayEngine(_RayActor):
    """Handle of an engine actor."""

    def __init__(self, name: str, actor: Any, concurrent: bool) -> None:
        super().__init__(name, actor)
        self.concurrent = concurrent

    async def expand(self, orders: Sequence[Expansion], token: str) -> list[Outcome]:
        return await _engine_call(self.actor.expand.remote(list(orders), token))

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        return await _engine_call(self.actor.score.remote(list(requests)))

    async def release(self, keys: Sequence[bytes]) -> None:
        await _engine_call(self.actor.release.remote(list(keys)))

    async def cancel(self, ids: Sequence[str]) -> None:
        await _engine_call(self.actor.cancel.remote(list(ids)))

    async def note_scores(self, items: Sequence[tuple[bytes, float, int]]) -> None:
        await _engine_call(self.actor.note_scores.remote(list(items)))


class RayIndex:
    """Handle of the index actor; a slow index counts as down, since placement can do without it."""

    def __init__(self, name: str, actor: Any) -> None:
        self.name = name
        self.actor = actor

    async def assign(self, wave: Assignment) -> list[Placed]:
        return await _index_call(self.actor.assign.remote(wave))

    async def note_scores(self, scores: Sequence[Scored], driver: str = "") -> None:
        await _index_call(self.actor.note_scores.remote(list(scores), driver))

    async def unpin(self, driver: str, keys: Sequence[bytes]) -> None:
        await _index_call(self.actor.unpin.remote(driver, list(keys)))

    async def renew(self, driver: str, pins: int) -> str | None:
        return await _index_call(self.actor.renew.remote(driver, pins))

    async def restore(self, driver: str, trees: Mapping[str, Sequence[bytes]]) -> None:
        await _index_call(self.actor.restore.remote(driver, {tree: list(keys) for tree, keys in trees.items()}))

    async def forget(self, actor: str) -> None:
        await _index_call(self.actor.forget.remote(actor))

    async def end_tree(self, tree: str, driver: str = "") -> None:
        await _index_call(self.actor.end_tree.remote(tree, driver))

    async def stats(self) -> dict[str, Any]:
        return await _index_call(self.actor.stats.remote())

    def kill(self) -> None:
        ray.kill(self.actor)


class RayTransport:
    """KV between engine actors, past the driver: through the object store, or with `direct` straight from device to
    device by Ray's direct transport of that name (`nixl`; `gloo` and `nccl` need a collective group of the actors).
    """

    def __init__(self, direct: str | None = None) -> None:
        self.direct = direct

    async def move(self, source: EngineHandle, target: EngineHandle, key: bytes, start: int) -> int:
        if not isinstance(source, RayEngine) or not isinstance(target, RayEngine):
            raise EngineFailedError("engine actors send KV to each other only")
        if self.direct is None:
            return await _engine_call(target.actor.import_kv.remote(source.actor.export_kv.remote(key, start)))
        export = source.actor.export_parcel.options(tensor_transport=self.direct)
        try:
            parcel = export.remote(key, start)
        except ValueError as error:  # the actor has no such transport
            raise EngineFailedError(str(error)) from None
        return await _engine_call(target.actor.import_parcel.remote(parcel))


async def _engine_call(ref: Awaitable[T]) -> T:
    try:
        return await ref
    except RayActorError as error:
        if getattr(error, "actor_init_failed", False):
            raise EngineFailedError(f"engine did not start: {_last_line(error)}") from None
        raise EngineDownError(_first_line(error)) from None
    except RayTaskError as error:
        cause = error.cause
        raise EngineFailedError(f"{type(cause).__name__}: {cause}" if cause else _first_line(error)) from None
    except RayError as error:
        raise EngineDownError(_first_line(error)) from None


async def _index_call(ref: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(_INDEX_S):
            return await ref
    except (RayError, GetTimeoutError, TimeoutError) as error:
        raise IndexDownError(_first_line(error) or "no answer") from None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
