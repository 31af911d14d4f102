"""The plain actor classes on Ray, and handles that classify Ray's errors once."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from actors.block_index import LEASE_S
from actors.engine_actor import EngineActor
from actors.handles import EngineDownError, EngineFailedError, EngineHandle, IndexDownError
from actors.messages import Reply
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
_CALLS = 32
_RESTART_S = 120.0
_RETRY_S = 0.2


class _RemoteEngine(EngineActor):
    """Calls of several problems run in threads and share the engine's batch; control calls have their own threads."""

    def __init__(self, name: str, spec: EngineSpec, index_name: str) -> None:
        index: list[Any] = []

        def publish(data: bytes) -> Reply:
            if not index:
                index.append(ray.get_actor(index_name))
            reply: Reply = ray.get(index[0].apply.remote(data), timeout=_PUBLISH_S)
            return reply

        super().__init__(name, spec.build, publish, background=True)

    @ray.method(concurrency_group="work")
    def expand(self, orders: Sequence[Expansion], token: str) -> list[Outcome]:  # type: ignore[override]
        return super().expand(orders, token)

    @ray.method(concurrency_group="work")
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
        return super().stats()


def start_index() -> RayIndex:
    """A restartable index actor that takes no CPU of the engines."""
    name = f"rksc-index-{uuid.uuid4().hex[:12]}"
    actor = (
        ray.remote(RSBCM).options(name=name, num_cpus=0, max_restarts=-1, max_task_retries=0).remote(lease_s=LEASE_S)
    )
    return RayIndex(name, actor)


def start_engine(
    name: str, spec: EngineSpec, index: RayIndex, num_cpus: float, num_gpus: float, direct: bool = False
) -> RayEngine:
    """A restartable engine actor; retries are the dispatcher's business, by expansion id. direct: for RayTransport."""
    decorate: Any = ray.remote
    groups = {"work": _CALLS, "ctl": 2, "move": 2}
    remote = decorate(concurrency_groups=groups, enable_tensor_transport=direct)(_RemoteEngine)
    options = {"num_cpus": num_cpus, "num_gpus": num_gpus, "max_restarts": -1, "max_task_retries": 0}
    return RayEngine(name, remote.options(**options).remote(name, spec, index.name), spec.concurrent)


def start_reward(name: str, spec: RewardSpec, num_cpus: float, num_gpus: float) -> RayReward:
    """A restartable actor of a reward model; asking once more is its verifier's business."""
    options = {"num_cpus": num_cpus, "num_gpus": num_gpus, "max_restarts": -1, "max_task_retries": 0}
    return RayReward(name, ray.remote(RewardActor).options(**options).remote(spec))


class _RayActor:
    """Handle of an actor that answers `ping` and `stats`."""

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
        return await asyncio.wait_for(_as_future(ref), _INDEX_S)
    except (RayError, GetTimeoutError, TimeoutError) as error:
        raise IndexDownError(_first_line(error) or "no answer") from None


async def _as_future(ref: Awaitable[T]) -> T:
    return await ref


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
