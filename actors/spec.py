"""What an engine is made of: a picklable description that checks itself before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from engine.base import Codec, Engine
from engine.models import SIMULATED, ModelSource, resolve

_ALL = frozenset({"logprobs", "confidence", "score"})


@dataclass(frozen=True)
class EngineSpec:
    """model: name as in `engine.models.resolve`, or "simulated". factory: builds another engine (tests, own engines).

    options: keyword arguments of the simulated engine; `step_s`, `prefill_rate`, `per_call_s` make its latency, which
    `realtime` lets pass for real.
    """

    model: str = "embedded"
    device: str = "auto"
    dtype: str = "auto"
    threads: int = 1
    kv_budget_bytes: int | None = None
    max_rows: int = 64
    options: tuple[tuple[str, Any], ...] = ()
    factory: Callable[[], Engine] | None = None

    @cached_property
    def source(self) -> ModelSource:
        """The model's files; raises ModelNotFoundError with what to do."""
        return resolve(self.model)

    @property
    def fingerprint(self) -> str:
        if self.factory is not None:
            return "factory"
        if self.model == SIMULATED:
            return SIMULATED
        return f"{self.source.fingerprint}:{self.dtype}"

    @cached_property
    def capabilities(self) -> frozenset[str]:
        return self.factory().capabilities if self.factory is not None else _ALL

    def codec(self) -> Codec:
        """Tokenizer and chat template, without weights."""
        from engine.tokenizer import ByteCodec, HFCodec

        if self.factory is not None:
            return self.factory().codec
        return ByteCodec() if self.model == SIMULATED else HFCodec(self.source)

    def build(self) -> Engine:
        """The engine itself; loads weights."""
        if self.factory is not None:
            return self.factory()
        if self.model == SIMULATED:
            return _simulated(self.kv_budget_bytes, dict(self.options))
        from engine.local import load_engine

        return load_engine(
            self.model,
            device=self.device,
            dtype=self.dtype,
            threads=self.threads,
            kv_budget_bytes=self.kv_budget_bytes,
            max_rows=self.max_rows,
            fingerprint=self.fingerprint,
        )


def _simulated(kv_budget_bytes: int | None, options: dict[str, Any]) -> Engine:
    from engine.simulated import SimulatedEngine
    from engine.text_engine import Latency, real_time

    latency = Latency(**{key: options.pop(key) for key in ("step_s", "prefill_rate", "per_call_s") if key in options})
    sleep = real_time() if options.pop("realtime", False) else None
    return SimulatedEngine(latency=latency, sleep=sleep, kv_budget_bytes=kv_budget_bytes, **options)
