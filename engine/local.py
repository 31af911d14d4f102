"""LocalEngine: a transformers model on one device with a KV tree; all samples of a call decode in one batch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine import attention, kv
from engine.base import (
    Branch,
    BranchRequest,
    BranchResult,
    Codec,
    KVEvent,
    ScoreQuery,
    ScoreResult,
    Usage,
    flat,
)
from engine.decode import Lane, Row, decode
from engine.kv_tree import KVTree, Segment
from engine.labels import Labels
from engine.loading import load_model, pick_device, pick_dtype
from engine.models import resolve
from engine.packed import forward
from engine.tokenizer import HFCodec

PREFILL_CHUNK = 256


class LocalEngine:
    """One model on one device. `kv_budget_bytes` bounds what is kept between calls (None: unbounded, 0: nothing)."""

    capabilities = frozenset({"logprobs", "confidence", "score"})

    def __init__(
        self,
        model: Any,
        codec: Codec,
        fingerprint: str,
        *,
        kv_budget_bytes: int | None = None,
        max_rows: int = 64,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model
        self.codec = codec
        self.max_rows = max_rows
        self.clock = clock
        self.device = next(model.parameters()).device
        self.shape = _kv_shape(model)
        self.tree = KVTree(fingerprint, kv_budget_bytes)
        self.labels = Labels.of(codec)
        self.counts: Counter[str] = Counter()

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
        """Load a model by name (see `engine.models.resolve`).

        threads: CPU threads of this process. fingerprint: names model and dtype in KV keys, computed when not given.
        """
        source = resolve(name)
        where = pick_device(device)
        if where.type == "cpu":
            torch.set_num_threads(threads)
        kind = pick_dtype(dtype, where)
        model = load_model(source, where, kind, attention.register())
        name_of_kv = fingerprint or f"{source.fingerprint}:{kind}"
        return cls(model, HFCodec(source), name_of_kv, kv_budget_bytes=kv_budget_bytes, max_rows=max_rows)

    # -- Engine ----------------------------------------------------------------------------------------------------
    def expand(self, requests: Sequence[BranchRequest]) -> list[BranchResult]:
        """Prefill what no ancestor holds, then decode all rows of the call together."""
        results: dict[int, BranchResult] = {}
        groups: dict[tuple[int, ...], list[int]] = {}
        for i, request in enumerate(requests):
            path = flat(request.path)
            problem = self._refusal(path, request.rule.max_tokens)
            if problem:
                results[i] = BranchResult(request.id, error=problem)
            else:
                groups.setdefault(path, []).append(i)
        for part in self._parts(requests, groups):
            results.update(self._run(requests, part))
        self.tree.enforce_budget()
        return [results[i] for i in range(len(requests))]

    def score(self, queries: Sequence[ScoreQuery]) -> list[ScoreResult]:
        """P(yes) of each query; paths are prefilled where not held, questions are read in packed batches."""
        results: list[ScoreResult] = []
        batch: list[tuple[ScoreQuery, list[int]]] = []
        size = 0
        for query in queries:
            question = self._question(query)
            problem = self._refusal(flat(query.path), len(question))
            if problem or (batch and size + len(question) > 2 * PREFILL_CHUNK):
                results += self._score(batch)
                batch, size = [], 0
            if problem:
                results.append(ScoreResult(query.id, None, error=problem))
            else:
                batch.append((query, question))
                size += len(question)
        results += self._score(batch)
        self.tree.enforce_budget()
        return results

    def release(self, paths: Sequence[bytes]) -> None:
        for key in paths:
            self.tree.release(key)

    def events(self) -> list[KVEvent]:
        return self.tree.events()

    def snapshot(self) -> list[KVEvent]:
        return self.tree.snapshot()

    def stats(self) -> dict[str, Any]:
        held = {
            "kv_tokens": self.tree.num_tokens,
            "kv_bytes": self.tree.num_bytes,
            "evicted": self.tree.num_evicted,
        }
        return {**self.counts, **held, "device": str(self.device), "dtype": str(self.shape.dtype)}

    # -- expanding -------------------------------------------------------------------------------------------------
    def _refusal(self, path: Sequence[int], new_tokens: int) -> str | None:
        limit = self.codec.context_length
        if not path:
            return "path has no tokens"
        if len(path) + new_tokens <= limit:
            return None
        return f"path of {len(path)} tokens and {new_tokens} new ones exceed the model's context of {limit}"

    def _parts(
        self, requests: Sequence[BranchRequest], groups: dict[tuple[int, ...], list[int]]
    ) -> list[dict[tuple[int, ...], list[int]]]:
        """Groups of equal paths packed into batches of at most `max_rows` rows (one large request may exceed it)."""
        parts: list[dict[tuple[int, ...], list[int]]] = [{}]
        rows = 0
        for path, members in groups.items():
            for i in members:
                n = len(requests[i].streams)
                if rows and rows + n > self.max_rows:
                    parts.append({})
                    rows = 0
                parts[-1].setdefault(path, []).append(i)
                rows += n
        return [part for part in parts if part]

    def _run(
        self, requests: Sequence[BranchRequest], part: dict[tuple[int, ...], list[int]]
    ) -> dict[int, BranchResult]:
        began = self.clock()
        held, lanes, pins = {}, [], []
        for path, members in part.items():
            held[path] = self.tree.match(path[:-1]).length
            pins.append(self._prefill(path[:-1]))
            lanes.append(self._lane(requests, path, members))
        prefilled = self.clock()
        branches: dict[int, list[Branch]] = {i: [] for members in part.values() for i in members}
        order = {id(row): row for lane in lanes for row in lane.rows}
        decode(self.model, self.device, self.codec, lanes, self._keep, self.clock)
        for row in order.values():
            branches[row.request].append(row.branch(self.codec))
        for segment in pins:
            if segment is not None:
                self.tree.unpin(segment)
        share = 1 / len(branches)
        seconds = ((prefilled - began) * share, (self.clock() - prefilled) * share)
        results = {}
        for path, members in part.items():
            for position, i in enumerate(members):
                usage = self._usage(path, held[path] if position == 0 else len(path) - 1, branches[i], seconds)
                results[i] = BranchResult(requests[i].id, tuple(branches[i]), usage)
        return results

    def _lane(self, requests: Sequence[BranchRequest], path: tuple[int, ...], members: Sequence[int]) -> Lane:
        now = self.clock()
        rows = [
            Row(
                i,
                stream,
                r.rule,
                r.temperature,
                r.top_p,
                None if r.deadline_s is None else now + r.deadline_s,
            )
            for i in members
            for r in (requests[i],)
            for stream in r.streams
        ]
        return Lane(kv.cohort(self.tree, self.shape, path[:-1], len(rows)), rows, path[-1], path)

    def _keep(self, lane: Lane, index: int) -> None:
        """Store a finished row's KV: all tokens it fed, in the tree, once."""
        tokens = (*lane.path, *lane.rows[index].tokens[:-1])
        self.tree.insert(tokens, lambda start, stop: kv.row_payload(lane.cohort, index, start, stop))

    def _usage(self, path: Sequence[int], held: int, branches: Sequence[Branch], seconds: tuple[float, float]) -> Usage:
        prefilled = len(path) - 1 - held
        reused = len(branches) * (len(path) - 1) - prefilled
        generated = sum(len(branch.token_ids) for branch in branches)
        self.counts.update(expansions=1, generated=generated, prefilled=prefilled, reused=reused)
        return Usage(
            generated=generated,
            prefilled=prefilled,
            reused={"exact": reused},
            held=held,
            seconds={"prefill": seconds[0], "decode": seconds[1]},
        )

    def _prefill(self, tokens: Sequence[int]) -> Segment | None:
        """Hold KV of `tokens`, computing what is missing in chunks; returns the pinned end segment."""
        if not tokens:
            return None
        group = kv.cohort(self.tree, self.shape, tokens, 1)
        start = group.length
        for at in range(start, len(tokens), PREFILL_CHUNK):
            forward(self.model, self.device, [group], [[tokens[at : at + PREFILL_CHUNK]]], logits=False)
        segment = self.tree.insert(tokens, lambda a, b: kv.row_payload(group, 0, a, b))
        self.tree.pin(segment)
        return segment

    # -- scoring ---------------------------------------------------------------------------------------------------
    def _question(self, query: ScoreQuery) -> list[int]:
        """Question tokens; an end-of-turn token that the branch already has is not repeated."""
        tokens = self.codec.encode(query.question)
        last = query.path[-1][-1:] if query.path else ()
        return tokens[1:] if last and last[0] in self.codec.eos_ids and tokens[0] == last[0] else tokens

    def _score(self, batch: Sequence[tuple[ScoreQuery, list[int]]]) -> list[ScoreResult]:
        if not batch:
            return []
        began = self.clock()
        groups, tokens, usages = [], [], []
        for query, question in batch:
            path = flat(query.path)
            held = self.tree.match(path[:-1]).length
            segment = self._prefill(path[:-1])
            groups.append(kv.cohort(self.tree, self.shape, path[:-1], 1))
            if segment is not None:
                self.tree.unpin(segment)
            tokens.append([[path[-1], *question]])
            usages.append((len(path) - 1 - held, held, len(question) + 1))
        logits = forward(self.model, self.device, groups, tokens)
        assert logits is not None
        seconds = (self.clock() - began) / len(batch)
        results = []
        for (query, _), row, (prefilled, held, scored) in zip(batch, logits, usages, strict=True):
            usage = Usage(
                prefilled=prefilled,
                scored=scored,
                reused={"exact": held},
                held=held,
                seconds={"score": seconds},
            )
            self.counts.update(scores=1, scored=scored)
            results.append(ScoreResult(query.id, self.labels.p_yes(row), usage))
        return results


def _kv_shape(model: Any) -> kv.KVShape:
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    parameter = next(model.parameters())
    return kv.KVShape(
        layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        dtype=parameter.dtype,
        device=parameter.device,
    )
