"""LocalEngine: a transformers model on one device with a KV tree; all samples of a call decode in one batch."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine import attention, kv
from engine.base import (
    BranchRequest,
    BranchResult,
    Codec,
    Engine,
    KVEvent,
    ScoreQuery,
    ScoreResult,
    Usage,
    flat,
    refusal,
    without_repeated_end,
)
from engine.fused import fuse
from engine.kv_tree import KVTree
from engine.labels import Labels
from engine.loading import load_model, pick_device, pick_dtype
from engine.models import resolve
from engine.packed import Feed, Forward
from engine.packing import is_packed, pack
from engine.plain import PlainEngine
from engine.scheduler import Scheduler, Ticket
from engine.selftest import kv_shape, unsupported
from engine.tokenizer import HFCodec

logger = logging.getLogger(__name__)
SCORE_TOKENS = 512


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
        logger.warning("model %r runs on the plain path, right but slow and without KV reuse: %s", name, error)
        error.model.set_attn_implementation("eager")
        return PlainEngine(error.model, error.codec)


class LocalEngine:
    """One model on one device. `kv_budget_bytes` bounds what is kept between calls (None: unbounded, 0: nothing)."""

    capabilities = frozenset({"logprobs", "confidence", "score"})
    concurrent = True

    def __init__(
        self,
        model: Any,
        codec: Codec,
        fingerprint: str,
        *,
        kv_budget_bytes: int | None = None,
        max_rows: int = 64,
        prefill_chunk: int = 256,
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
        self.tree = KVTree(fingerprint, kv_budget_bytes)
        self.labels = Labels.of(codec)
        self.counts: Counter[str] = Counter()
        self._forward = Forward(model, self.device, 1 if is_packed(model) else attention.MIN_ROWS)
        self._scheduler = Scheduler(self._forward, codec, self.tree, self.shape, max_rows, clock, prefill_chunk)
        self._lock = threading.Lock()

    @classmethod
    def load(
        cls,
        name: str = "embedded",
        *,
        device: str = "auto",
        dtype: str = "auto",
        threads: int = 1,
        kv_budget_bytes: int | None = None,
        max_rows: int = 64,
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
        model, codec = load_model(source, where, kind, attention.register()), HFCodec(source)
        shape = kv_shape(model)
        reason, probe = unsupported(model, shape)
        if reason is not None or shape is None or probe is None:
            raise UnsupportedModelError(reason or "", model, codec)
        model = fuse(model)
        if (difference := probe.mismatch(model, shape)) is not None:
            logger.warning("the fused forward of %r is not used: %s", name, difference)
            model = load_model(source, where, kind, attention.register())
            pack(model)
        name_of_kv = fingerprint or f"{source.fingerprint}:{kind}"
        return cls(model, codec, name_of_kv, kv_budget_bytes=kv_budget_bytes, max_rows=max_rows)

    # -- Engine ----------------------------------------------------------------------------------------------------
    def expand(self, requests: Sequence[BranchRequest]) -> list[BranchResult]:
        """Prefill what no ancestor holds, decode all rows together.

        Calls from several threads share one running batch: whoever holds the lock runs a step for all of them.
        """
        tickets = [self._ticket(request) for request in requests]
        with self._lock:
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
        results = [ticket.result(self.codec) for ticket in tickets]
        self._count(results)
        return results

    def score(self, queries: Sequence[ScoreQuery]) -> list[ScoreResult]:
        """P(yes) of each query; paths are prefilled where not held, questions are read in packed batches."""
        with self._lock:
            results: list[ScoreResult] = []
            for part in _portions([self._asked(query) for query in queries], SCORE_TOKENS):
                results += self._score(part)
            self.tree.enforce_budget()
            return results

    def release(self, paths: Sequence[bytes]) -> None:
        with self._lock:
            for key in paths:
                self.tree.release(key)

    def events(self) -> list[KVEvent]:
        with self._lock:
            return self.tree.events()

    def snapshot(self) -> list[KVEvent]:
        with self._lock:
            return self.tree.snapshot()

    def stats(self) -> dict[str, Any]:
        held = {"kv_tokens": self.tree.num_tokens, "kv_bytes": self.tree.num_bytes, "evicted": self.tree.num_evicted}
        return {**self.counts, **held, "device": str(self.device), "dtype": str(self.shape.dtype)}

    # -- expanding -------------------------------------------------------------------------------------------------
    def _ticket(self, request: BranchRequest) -> Ticket:
        ticket = Ticket.of(request, self.clock())
        ticket.error = refusal(self.codec, ticket.path, request.rule.max_tokens)
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

    # -- scoring ---------------------------------------------------------------------------------------------------
    def _asked(self, query: ScoreQuery) -> _Asked:
        path = flat(query.path)
        tokens = without_repeated_end(self.codec, path, self.codec.encode(query.question))
        return _Asked(query, path, tokens, refusal(self.codec, path, len(tokens)))

    def _score(self, batch: Sequence[_Asked]) -> list[ScoreResult]:
        began = self.clock()
        feeds: list[Feed] = []
        held = {}
        for asked in batch:
            if asked.error is None:
                held[id(asked)] = self.tree.match(asked.path[:-1]).length
                pin = self._scheduler.hold(asked.path[:-1])
                cohort = kv.cohort(self.tree, self.shape, asked.path[:-1], 1)
                feeds.append((cohort, [[asked.path[-1], *asked.question]], True))
                if pin is not None:
                    self.tree.unpin(pin)
        logits = iter(self._forward(feeds) if feeds else ())
        seconds = (self.clock() - began) / max(len(feeds), 1)
        return [self._scored(asked, held.get(id(asked), 0), logits, seconds) for asked in batch]

    def _scored(self, asked: _Asked, held: int, logits: Iterator[Tensor], seconds: float) -> ScoreResult:
        if asked.error is not None:
            return ScoreResult(asked.query.id, None, error=asked.error)
        usage = Usage(
            prefilled=len(asked.path) - 1 - held,
            scored=len(asked.question) + 1,
            reused={"exact": held},
            held=held,
            seconds={"score": seconds},
        )
        self.counts.update(scores=1, scored=usage.scored)
        return ScoreResult(asked.query.id, self.labels.p_yes(next(logits)), usage)


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """A score query in tokens, or why it is refused."""

    query: ScoreQuery
    path: tuple[int, ...]
    question: list[int]
    error: str | None


def _portions(batch: Sequence[_Asked], most: int) -> Iterator[list[_Asked]]:
    """Queries in order, as many at a time as have `most` question tokens (a single longer one goes alone)."""
    portion: list[_Asked] = []
    size = 0
    for asked in batch:
        if portion and size + len(asked.question) > most:
            yield portion
            portion, size = [], 0
        portion.append(asked)
        size += len(asked.question)
    if portion:
        yield portion
