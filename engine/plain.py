"""PlainEngine: any causal language model, right but slow - each step reads the whole sequence, nothing is kept.

For models whose layers the tree attention cannot serve (state-space layers, attention of their own).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from engine.asks.options import refused
from engine.base import (
    BranchRequest,
    BranchResult,
    Codec,
    KVEvent,
    ScoreQuery,
    ScoreResult,
    Usage,
    flat,
    refusal,
)
from engine.decode import Row, draw_all
from engine.hardware import hardware
from engine.labels import Labels
from engine.scoring import Asked


class PlainEngine:
    """Same protocol as LocalEngine. Rows of a request decode as one batch; nothing is reused and no question's
    reading ends early, and the counts say so.
    """

    capabilities = frozenset({"logprobs", "confidence", "score", "prune"})
    concurrent = True

    def __init__(self, model: Any, codec: Codec, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.model = model
        self.codec = codec
        self.clock = clock
        self.device = next(model.parameters()).device
        self.labels = Labels.of(codec)
        self.layers = int(getattr(model.config.get_text_config(), "num_hidden_layers", 0))
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._hardware = hardware(self.device, torch.get_num_threads())

    def expand(self, requests: Sequence[BranchRequest]) -> list[BranchResult]:
        asked = self.clock()
        with self._lock:
            return [self._expand(request, asked) for request in requests]

    def score(self, queries: Sequence[ScoreQuery]) -> list[ScoreResult]:
        with self._lock:
            return [self._score(query) for query in queries]

    def release(self, paths: Sequence[bytes]) -> None:
        return

    def note_scores(self, items: Sequence[tuple[bytes, float, int]]) -> None:
        return

    def events(self) -> list[KVEvent]:
        return []

    def snapshot(self) -> list[KVEvent]:
        return []

    def stats(self) -> dict[str, Any]:
        told = {"kv_tokens": 0, "kv_bytes": 0, "device": str(self.device), "path": "plain"}
        return {**self.counts, **told, **self._hardware}

    def _expand(self, request: BranchRequest, asked: float) -> BranchResult:
        """asked: when the call came, from which deadlines count."""
        path = flat(request.path)
        error = refusal(self.codec, path, request.rule.max_tokens) or refused(request.tiers, frozenset())
        if error is not None:
            return BranchResult(request.id, error=error)
        began = self.clock()
        rows = Row.all_of(request, self.codec, asked)
        for row in rows:
            row.finish = "cancelled" if row.late(began) else None
        while running := [row for row in rows if row.finish is None]:
            logits = self._last([[*path, *row.tokens] for row in running])
            draw_all(logits, running, self.codec, self.clock())
            if (error := next((row.error for row in running if row.error is not None), None)) is not None:
                return BranchResult(request.id, error=error)
        branches = tuple(row.branch() for row in rows)
        generated = sum(len(branch.token_ids) for branch in branches)
        prefilled = len(rows) * (len(path) - 1)
        self.counts.update(expansions=1, generated=generated, prefilled=prefilled)
        seconds = {"prefill": 0.0, "decode": self.clock() - began}
        return BranchResult(request.id, branches, Usage(generated, prefilled, reused={"exact": 0}, seconds=seconds))

    def _score(self, query: ScoreQuery) -> ScoreResult:
        asked = Asked.of(query, self.codec)
        path, question = asked.path, asked.question
        error = asked.error or refused(query.tiers, frozenset())
        if error is not None:
            return ScoreResult(query.id, None, error=error)
        began = self.clock()
        logits = self._last([[*path, *question]])
        usage = Usage(
            prefilled=len(path) - 1,
            scored=len(question) + 1,
            layer_rows=self.layers,
            layer_rows_full=self.layers,
            seconds={"score": self.clock() - began},
        )
        self.counts.update(scores=1, scored=usage.scored, layer_rows=self.layers, layer_rows_full=self.layers)
        return ScoreResult(query.id, asked.value(logits[0], self.labels), usage)

    @torch.inference_mode()
    def _last(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Logits [R, V] at the end of equally long sequences."""
        self.counts["steps"] += 1
        tokens = torch.tensor([list(row) for row in rows], device=self.device)
        logits: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return logits[:, -1]
