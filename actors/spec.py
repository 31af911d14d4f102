"""What an engine is made of: a picklable description that checks itself before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from actors.rates import credit_rows
from engine.asks.options import Asks
from engine.base import Codec, Engine
from engine.eviction import policy
from engine.kv_size import kv_bytes_per_token
from engine.models import SIMULATED, ModelSource, resolve

_SIMULATED = frozenset({"logprobs", "confidence", "score", "prune", "kv_export"})
_LOCAL = _SIMULATED | {"cancel"}
_MOST_CALLS = 256
_FEW_CALLS = 8


@dataclass(frozen=True)
class EngineSpec:
    """model: name as in `engine.models.resolve`, or "simulated". factory: builds another engine (tests, own engines).

    options: keyword arguments of the simulated engine; `step_s`, `prefill_rate`, `per_call_s`, `link_rate` make its
    latency, which `realtime` lets pass for real.
    """

    model: str = "embedded"
    device: str = "auto"
    dtype: str = "auto"
    threads: int = 1
    kv_budget_bytes: int | None = None
    host_budget_bytes: int | None = None
    eviction: str = "lru"
    attention: str = "auto"
    max_rows: int = 64
    options: tuple[tuple[str, Any], ...] = ()
    asks: Asks = field(default_factory=Asks)
    factory: Callable[[], Engine] | None = None

    def __post_init__(self) -> None:
        policy(self.eviction)

    def __getstate__(self) -> dict[str, Any]:
        """Only what describes the engine travels, nothing that was worked out here."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def check(self) -> None:
        """Find out what can be wrong without loading weights; ValueError says it."""
        if self.asks.tiers and (self.factory is not None or self.model == SIMULATED):
            tiers = ", ".join(sorted(self.asks.tiers))
            raise ValueError(f"asks tiers {tiers} need an engine that runs a model, not a simulated one or a factory's")
        if self.factory is not None:
            _ = self._example
        elif self.model == SIMULATED:
            try:
                self.build()
            except TypeError as error:
                raise ValueError(f"simulated engine: {error}") from None
        else:
            _ = self.source

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
        if self.factory is not None:
            return self._example.capabilities
        return _SIMULATED if self.model == SIMULATED else _LOCAL

    @property
    def concurrent(self) -> bool:
        """Whether calls to the engine share a batch (`engine.base.Engine`)."""
        if self.factory is not None:
            return self._example.concurrent
        return self.model != SIMULATED

    @property
    def calls(self) -> int:
        """Calls that it is given at once, at most: one for each row that credits allow (`actors.rates`), where calls
        share a batch."""
        return min(credit_rows(self.max_rows), _MOST_CALLS) if self.concurrent else _FEW_CALLS

    @property
    def kv_bytes_per_token(self) -> int | None:
        """Bytes of KV a token takes on an engine, at most; None where nothing tells."""
        if self.factory is not None or self.model == SIMULATED:
            return getattr(self._example if self.factory is not None else self.build(), "bytes_per_token", None)
        return kv_bytes_per_token(self.source, self.dtype)

    @cached_property
    def _example(self) -> Engine:
        """One engine of the factory, built in the driver for its codec and capabilities, and for nothing else."""
        if self.factory is None:
            raise RuntimeError("only a factory has an example")
        try:
            engine = self.factory()
        except Exception as error:  # the user's code may raise anything
            raise ValueError(f"the engine's factory raised {type(error).__name__}: {error}") from error
        if not hasattr(engine, "expand") or not hasattr(engine, "codec"):
            raise ValueError(f"the engine's factory must return an engine, got a {type(engine).__name__}")
        return engine

    def codec(self) -> Codec:
        """Tokenizer and chat template, without weights."""
        from engine.tokenizer import ByteCodec, HFCodec

        if self.factory is not None:
            return self._example.codec
        return ByteCodec() if self.model == SIMULATED else HFCodec(self.source)

    def build(self) -> Engine:
        """The engine itself; loads weights."""
        if self.factory is not None:
            return self.factory()
        if self.model == SIMULATED:
            return _simulated(self, dict(self.options))
        from engine.local import load_engine

        return load_engine(
            self.model,
            device=self.device,
            dtype=self.dtype,
            threads=self.threads,
            kv_budget_bytes=self.kv_budget_bytes,
            host_budget_bytes=self.host_budget_bytes,
            eviction=self.eviction,
            attention=self.attention,
            max_rows=self.max_rows,
            asks=self.asks,
            fingerprint=self.fingerprint,
        )


def _simulated(spec: EngineSpec, options: dict[str, Any]) -> Engine:
    from engine.simulated import SimulatedEngine
    from engine.text_engine import Latency, real_time

    latency = Latency(
        **{key: options.pop(key) for key in ("step_s", "prefill_rate", "per_call_s", "link_rate") if key in options}
    )
    sleep = real_time() if options.pop("realtime", False) else None
    return SimulatedEngine(
        latency=latency,
        sleep=sleep,
        kv_budget_bytes=spec.kv_budget_bytes,
        host_budget_bytes=spec.host_budget_bytes or 0,
        eviction=spec.eviction,
        **options,
    )
