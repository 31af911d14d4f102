"""LocalEngine: a transformers model on one device with a KV tree; all samples of a call decode in one batch."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from engine import kv_transfer, proposals
from engine.asks.options import Asks, refused
from engine.asks.tiers import Tiers, check
from engine.attention import Attention, choose, register
from engine.base import (
    BranchRequest,
    BranchResult,
    Codec,
    Engine,
    KVEvent,
    ScoreQuery,
    ScoreResult,
    Segments,
    refusal,
)
from engine.eviction import policy
from engine.fused import FusedModel, fuse
from engine.hardware import hardware
from engine.kv_transfer import Parcel
from engine.kv_tree import KVTree
from engine.kv_walk import part_at_ends
from engine.labels import Labels
from engine.loading import load_model, pick_device, pick_dtype
from engine.models import ModelSource, resolve
from engine.packed import Forward
from engine.packing import PLAIN_ROWS, pack, packed_by
from engine.plain import PlainEngine
from engine.scheduler import Scheduler, Ticket
from engine.scoring import Scorer, asked_of
from engine.selftest import kv_shape, unsupported
from engine.tokenizer import HFCodec

logger = logging.getLogger(__name__)
_DRIVER = Path("/proc/driver/nvidia/gpus")


class UnsupportedModelError(ValueError):
    """The tree attention cannot serve this model; it is loaded and carried here for the plain path."""

    def __init__(self, reason: str, model: Any, codec: Codec) -> None:
        super().__init__(reason)
        self.model = model
        self.codec = codec


def load_engine(name: str, **options: Any) -> Engine:
    """LocalEngine with `options` (see its `load`), or the plain path for a model that it cannot serve."""
    try:
        return LocalEngine.load(name, **options)
    except UnsupportedModelError as error:
        check(options.get("asks") or Asks(), error.model)
        logger.warning("model %r runs on the plain path, right but slow and without KV reuse: %s", name, error)
        error.model.set_attn_implementation("eager")
        return PlainEngine(error.model, error.codec)


class LocalEngine:
    """One model on one device.

    kv_budget_bytes: most bytes of KV on the device at any time, running rows included; None is unbounded, 0 keeps
    nothing between calls and bounds nothing else. eviction: who goes first when bytes are short (`engine.eviction`).
    attention: how it is computed (`engine.attention.choose`).
    host_budget_bytes: evicted KV kept in host memory; None is a quarter of the machine's free memory divided by its
    GPUs, and nothing where the device is the CPU itself. asks: tiers of reuse that approximate (`engine.asks`), none
    by default.
    name: the model's, for the paper's presets of them.
    """

    concurrent = True

    def __init__(
        self,
        model: Any,
        codec: Codec,
        fingerprint: str,
        *,
        kv_budget_bytes: int | None = None,
        host_budget_bytes: int | None = None,
        eviction: str = "lru",
        max_rows: int = 64,
        prefill_chunk: int = 256,
        attention: str = "auto",
        asks: Asks | None = None,
        name: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model
        self.codec = codec
        self.clock = clock
        self.device = next(model.parameters()).device
        shape = kv_shape(model)
        if shape is None:
            raise UnsupportedModelError("it has no attention layers with key-value heads", model, codec)
        self.shape = shape
        on_host = _host_budget(self.device) if host_budget_bytes is None else host_budget_bytes
        self.tree = KVTree(fingerprint, kv_budget_bytes, policy=policy(eviction), host_budget_bytes=on_host)
        self.labels = Labels.of(codec)
        self.counts: Counter[str] = Counter()
        kernel = packed_by(model)
        self.attention = choose(attention, self.device, shape.dtype)
        least_rows = kernel.least_rows if kernel else PLAIN_ROWS
        self.forward = Forward(model, self.device, least_rows, self.attention)
        self._scheduler = Scheduler(self.forward, codec, self.tree, self.shape, max_rows, clock, prefill_chunk)
        if asks is not None and asks.tiers:
            self._scheduler.asks = Tiers.of(asks, name, self.forward, self._scheduler.admission)
        self._scorer = Scorer(self._scheduler, self.labels, clock)
        self._lock = threading.Lock()
        self._hardware = hardware(self.device, torch.get_num_threads())

    @classmethod
    def load(
        cls,
        name: str = "embedded",
        *,
        device: str = "auto",
        dtype: str = "auto",
        threads: int = 1,
        kv_budget_bytes: int | None = None,
        host_budget_bytes: int | None = None,
        eviction: str = "lru",
        max_rows: int = 64,
        attention: str = "auto",
        asks: Asks | None = None,
        fingerprint: str = "",
    ) -> LocalEngine:
        """Load a model by name (see `engine.models.resolve`) and check it against its own attention.

        UnsupportedModelError carries a model that fails the check; `load_engine` runs that on the plain path.
        threads: CPU threads of this process. fingerprint: names model and dtype in KV keys, computed when not given.
        """
        source = resolve(name)
        where = pick_device(device)
        if where.type == "cpu":
            torch.set_num_threads(threads)
        kind = pick_dtype(dtype, where)
        model, codec = _checked(source, where, kind, choose(attention, where, kind))
        name_of_kv = fingerprint or f"{source.fingerprint}:{kind}"
        return cls(
            model,
            codec,
            name_of_kv,
            kv_budget_bytes=kv_budget_bytes,
            host_budget_bytes=host_budget_bytes,
            eviction=eviction,
            max_rows=max_rows,
            attention=attention,
            asks=asks,
            name=name,
        )

    # -- Engine ----------------------------------------------------------------------------------------------------
    @property
    def capabilities(self) -> frozenset[str]:
        """`layer_exit` takes a fused model; others read a question to the last layer, whatever is asked."""
        own = {"layer_exit"} if isinstance(self.model, FusedModel) else set()
        return frozenset({"logprobs", "confidence", "score", "kv_export", "cancel", "prune", *own})

    def expand(self, requests: Sequence[BranchRequest]) -> list[BranchResult]:
        """Prefill what no ancestor holds, decode all rows together.

        Calls from several threads share one running batch: whoever holds the lock runs a step for all of them.
        """
        tickets = [self._ticket(request) for request in requests]
        for ticket in tickets:
            if ticket.error is None:
                self._scheduler.enqueue(ticket)
        while not all(ticket.done for ticket in tickets):
            with self._lock:
                if not all(ticket.done for ticket in tickets):
                    self._step()
        for ticket in tickets:
            if ticket.failure is not None:
                raise ticket.failure
        self._part(request.path for request in requests)
        results = [ticket.result() for ticket in tickets]
        self._count(results)
        return results

    def score(self, queries: Sequence[ScoreQuery]) -> list[ScoreResult]:
        """P(yes) of each query; paths are prefilled where not held, questions are read in packed batches.

        Queries that do not fit beside what runs wait for it, and nothing new starts before them.
        """
        waiting = asked_of(queries, self.codec)
        results: list[ScoreResult] = []
        closed = False
        try:
            while waiting:
                with self._lock:
                    part = self._scorer.score(waiting)
                    results += part
                    if not part:
                        self._scheduler.closed += not closed
                        closed = True
                        self._step()
        finally:
            if closed:
                with self._lock:
                    self._scheduler.closed -= 1
        self._part(query.path for query in queries)
        self.counts.update(scores=sum(r.error is None for r in results))
        for name in ("scored", "exits", "layer_rows", "layer_rows_full"):
            self.counts[name] += sum(getattr(r.usage, name) for r in results)
        return results

    def note_scores(self, items: Sequence[tuple[bytes, float, int]]) -> None:
        self.tree.note_scores(items)

    def cancel(self, ids: Sequence[str]) -> None:
        """End these requests at the next step, with what they have; from any thread. Unknown ids are ignored."""
        self._scheduler.cancel(ids)

    def _part(self, paths: Iterable[Segments]) -> None:
        """What is held of these paths can be released from any of their nodes on."""
        with self._lock:
            for path in paths:
                part_at_ends(self.tree.root, self.tree.reach, path)

    def release(self, paths: Sequence[bytes]) -> None:
        with self._lock:
            for key in paths:
                self.tree.release(key)

    def pressure(self) -> tuple[int, int, int] | None:
        return proposals.pressure(self.tree, self.shape.bytes_per_token)

    def evict(self, keys: Sequence[bytes]) -> list[bytes]:
        with self._lock:
            return proposals.follow(self.tree, keys)

    def events(self) -> list[KVEvent]:
        with self._lock:
            asks = self._scheduler.asks
            return [*self.tree.events(), *(asks.roots.events() if asks else ())]

    def snapshot(self) -> list[KVEvent]:
        with self._lock:
            asks = self._scheduler.asks
            return [*self.tree.snapshot(), *(asks.roots.snapshot() if asks else ())]

    def stats(self) -> dict[str, Any]:
        asks = self._scheduler.asks
        under_way = {**self._scheduler.lengths(), "steps": self.forward.steps}
        told = {**self.counts, **under_way, **self.tree.memory(), **self.settings, **self._hardware}
        return {**told, **(asks.stats() if asks else {})}

    @property
    def settings(self) -> dict[str, str]:
        """How this engine computes."""
        kernel = packed_by(self.model)
        return {
            "device": str(self.device),
            "dtype": str(self.shape.dtype),
            "attention": self.attention.name,
            "products": kernel.name if kernel else "torch",
        }

    def check_integrity(self) -> None:
        """Raise RuntimeError if the books of KV do not balance or a budget is exceeded."""
        with self._lock:
            self._scheduler.admission.check_integrity()

    # -- moving KV -------------------------------------------------------------------------------------------------
    def export_kv(self, key: bytes, start: int = 0) -> bytes:
        """KV of the path that ends at `key` (see `engine.base.path_keys`) from token `start` on, for `import_kv`."""
        return kv_transfer.pack(self.export_parcel(key, start))

    def import_kv(self, data: bytes) -> int:
        """Hold exported KV if there is room for it; returns how many of its path's tokens are now held.

        ValueError for KV of another model, dtype or shape.
        """
        return self.import_parcel(kv_transfer.unpack(data, self.tree.fingerprint, self.shape))

    def export_parcel(self, key: bytes, start: int = 0) -> Parcel:
        """As `export_kv`, in tensors that lie where the KV lies."""
        with self._lock:
            end = self.tree.find(key)
            if end is None or end.approximate:
                raise ValueError(f"no KV is held for key {key.hex()}")
            return kv_transfer.take(self.tree, end, start)

    def import_parcel(self, parcel: Parcel) -> int:
        """As `import_kv`."""
        kv_transfer.check(parcel, self.tree.fingerprint, self.shape)
        with self._lock:
            return kv_transfer.store(self.tree, self.shape, parcel)

    # -- expanding -------------------------------------------------------------------------------------------------
    def _ticket(self, request: BranchRequest) -> Ticket:
        ticket = Ticket.of(request, self.codec, self.clock())
        new_tokens = request.rule.max_tokens
        ticket.error = refusal(self.codec, ticket.path, new_tokens)
        if ticket.error is None:
            ticket.error = self._scheduler.admission.refusal(len(ticket.path) - 1, new_tokens)
        asks = self._scheduler.asks
        ticket.error = ticket.error or refused(request.tiers, asks.on if asks else frozenset())
        ticket.tiers = asks.chosen(request.tiers) if asks else frozenset()
        return ticket

    def _step(self) -> None:
        try:
            self._scheduler.step()
        except Exception as error:
            self._scheduler.fail(error)

    def _count(self, results: Sequence[BranchResult]) -> None:
        for usage in (result.usage for result in results if result.error is None):
            self.counts.update(
                expansions=1, generated=usage.generated, prefilled=usage.prefilled, reused=sum(usage.reused.values())
            )


def _checked(source: ModelSource, device: torch.device, dtype: torch.dtype, backend: Attention) -> tuple[Any, Codec]:
    """The model, fused where that is possible, and its codec; UnsupportedModelError if the tree attention errs."""
    model, codec = load_model(source, device, dtype, register()), HFCodec(source)
    shape = kv_shape(model)
    reason, probe = unsupported(model, shape, backend)
    if reason is not None or shape is None or probe is None:
        raise UnsupportedModelError(reason or "", model, codec)
    model = fuse(model)
    if (difference := probe.mismatch(model, shape, backend)) is not None:
        logger.warning("the fused forward of %r is not used: %s", source.name, difference)
        model = load_model(source, device, dtype, register())
        pack(model)
    return model, codec


def _host_budget(device: torch.device) -> int:
    """A quarter of the machine's free memory, divided by its GPUs; none of it where the device is the CPU."""
    if device.type == "cpu":
        return 0
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") // (4 * _gpus())


def _gpus() -> int:
    """GPUs of the machine, at least one; an engine's process may be shown only its own."""
    there = len(list(_DRIVER.iterdir())) if _DRIVER.is_dir() else 0
    return max(there, torch.cuda.device_count(), 1)
