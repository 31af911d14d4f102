"""A reward model as a picklable description, the plain actor around it, and how a verifier reaches one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from actors.handles import EngineDownError, EngineFailedError
from engine.models import resolve
from engine.solution import Reading, RewardQuery, Rewards
from search.verifiers.threads import in_thread

T = TypeVar("T")


class Scoring(Protocol):
    """What scores solutions: `engine.reward.RewardModel`, or a factory's own."""

    def score(self, queries: Sequence[RewardQuery]) -> list[Rewards]: ...

    def stats(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class RewardSpec:
    """model, head, labels, separator: as in `engine.reward.RewardModel.load`. factory: builds another one."""

    model: str
    reading: Reading
    head: str = "auto"
    labels: tuple[str, str] | None = None
    separator: str = "\n"
    device: str = "auto"
    dtype: str = "auto"
    threads: int = 1
    kv_budget_bytes: int | None = 1 << 30
    factory: Callable[[], Scoring] | None = None

    def check(self) -> None:
        """Find out what can be wrong without loading weights; ValueError says it."""
        if self.factory is None:
            from engine.reward_head import Head

            Head.of(resolve(self.model), self.head, self.labels)

    @property
    def fingerprint(self) -> str:
        """Names what gives the values."""
        if self.factory is not None:
            return f"factory {getattr(self.factory, '__qualname__', type(self.factory).__qualname__)}"
        return f"{resolve(self.model).fingerprint}:{self.dtype}:{self.labels}:{self.separator!r}"

    def build(self) -> Scoring:
        if self.factory is not None:
            return self.factory()
        from engine.reward import RewardModel

        return RewardModel.load(
            resolve(self.model),
            reading=self.reading,
            head=self.head,
            labels=self.labels,
            separator=self.separator,
            device=self.device,
            dtype=self.dtype,
            threads=self.threads,
            kv_budget_bytes=self.kv_budget_bytes,
        )


class RewardActor:
    """One reward model behind calls. Plain; `remote` wraps it."""

    def __init__(self, spec: RewardSpec) -> None:
        self.model = spec.build()

    def score(self, queries: Sequence[RewardQuery]) -> list[Rewards]:
        return self.model.score(queries)

    def ping(self) -> int:
        """Process id; answers once the model is loaded."""
        return os.getpid()

    def stats(self) -> dict[str, Any]:
        return {"pid": os.getpid(), **self.model.stats()}


class RewardHandle(Protocol):
    """Every call raises EngineDownError or EngineFailedError and nothing else."""

    @property
    def name(self) -> str: ...

    async def score(self, queries: Sequence[RewardQuery]) -> list[Rewards]: ...

    async def ready(self) -> int:
        """Process id, once the model (or its restarted successor) can take calls."""
        ...

    async def restart(self) -> None:
        """End a model that hangs; it comes back by itself."""
        ...

    async def stats(self) -> dict[str, Any]: ...


class InlineReward:
    """A reward model in this process, built at first use. One that hangs is left alone in its thread and built anew."""

    def __init__(self, name: str, spec: RewardSpec) -> None:
        self._name = name
        self._spec = spec
        self._actor: RewardActor | None = None

    @property
    def name(self) -> str:
        return self._name

    async def score(self, queries: Sequence[RewardQuery]) -> list[Rewards]:
        return await self._work(lambda actor: actor.score(queries))

    async def ready(self) -> int:
        return await self._work(lambda actor: actor.ping())

    async def restart(self) -> None:
        self._actor = None

    async def stats(self) -> dict[str, Any]:
        return await self._work(lambda actor: actor.stats())

    async def _work(self, call: Callable[[RewardActor], T]) -> T:
        try:
            if self._actor is None:
                self._actor = await in_thread(lambda: RewardActor(self._spec))
            actor = self._actor
            return await in_thread(lambda: call(actor))
        except EngineDownError:
            raise
        except Exception as error:  # process border: whatever a model raises is its failure, not the driver's
            raise EngineFailedError(f"{type(error).__name__}: {error}") from error
