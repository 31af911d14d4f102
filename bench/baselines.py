"""Stock transformers: every branch from scratch, or one prefill whose KV is repeated for each branch."""

from __future__ import annotations

from inspect import signature
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from bench.conditions import Outcome, Setup
from bench.workload import Job, Point


class NoKV:
    """Every branch prefills its whole prompt in one batch; logits at the last position only."""

    def __init__(self, setup: Setup, point: Point) -> None:
        self.counting = False
        self.settings: dict[str, Any] = {"engine": "transformers", "attention": "sdpa", "cache": "DynamicCache"}
        self._model = setup.stock

    def begin(self) -> None:
        """Nothing is kept between expansions."""

    def expand(self, job: Job) -> Outcome:
        prompts = job.prompts()
        began = perf_counter()
        cache = DynamicCache(config=self._model.config)
        tokens = greedy(self._model, tensor(self._model, prompts), cache, job.new_tokens)
        seconds = perf_counter() - began
        return Outcome(tokens, seconds, sum(map(len, prompts)), cache_bytes(cache))

    def end(self) -> None:
        """Nothing is kept between expansions."""


class ExactCache:
    """One prefill of the shared tokens, its KV repeated for each branch. Keeps the KV of the last expansion's rows."""

    def __init__(self, setup: Setup, point: Point) -> None:
        self.counting = False
        self.settings: dict[str, Any] = {"engine": "transformers", "attention": "sdpa", "cache": "DynamicCache"}
        self._model = setup.stock
        self.begin()

    def begin(self) -> None:
        self._cache = DynamicCache(config=self._model.config)
        self._rows: list[tuple[int, ...]] = []

    def expand(self, job: Job) -> Outcome:
        shared, hints = job.prefix, [list(hint) for hint in job.hints]
        began = perf_counter()
        missing = self._hold(shared)
        self._cache.batch_repeat_interleave(len(hints))
        tokens = greedy(self._model, tensor(self._model, hints), self._cache, job.new_tokens)
        seconds = perf_counter() - began
        self._rows = [(*shared, *hint, *row[:-1]) for hint, row in zip(hints, tokens, strict=True)]
        return Outcome(tokens, seconds, missing + sum(map(len, hints)), cache_bytes(self._cache))

    def end(self) -> None:
        self.begin()

    @torch.inference_mode()
    def _hold(self, shared: tuple[int, ...]) -> int:
        """Make the cache hold exactly `shared` in one row; returns how many of its tokens were computed."""
        row = next((i for i, held in enumerate(self._rows) if shared[: len(held)] == held), None)
        if row is None:
            self.begin()
            missing = shared
        else:
            self._cache.batch_select_indices(torch.tensor([row], device=self._model.device))
            missing = shared[len(self._rows[row]) :]
        if missing:
            ids = tensor(self._model, [list(missing)])
            self._model.base_model(input_ids=ids, use_cache=True, **cache_argument(self._model, self._cache))
        return len(missing)


@torch.inference_mode()
def greedy(model: Any, ids: Tensor, cache: DynamicCache, new_tokens: int) -> list[list[int]]:
    """Feed `ids` [B, q] behind the cache, then draw `new_tokens` tokens a row, the likeliest each time."""
    drawn = []
    held = cache_argument(model, cache)
    for _ in range(new_tokens):
        logits = model(input_ids=ids, use_cache=True, logits_to_keep=1, **held).logits
        ids = logits[:, -1].argmax(dim=-1, keepdim=True)
        drawn.append(ids)
    rows: list[list[int]] = torch.cat(drawn, dim=1).tolist()
    return rows


def cache_argument(model: Any, cache: DynamicCache) -> dict[str, DynamicCache]:
    """The cache under the name that this version of transformers gives it."""
    return {"cache" if "cache" in signature(model.forward).parameters else "past_key_values": cache}


def tensor(model: Any, rows: list[list[int]]) -> Tensor:
    return torch.tensor(rows, device=model.device)


def cache_bytes(cache: DynamicCache) -> int:
    tensors = [t for layer in cache.layers for t in (layer.keys, layer.values) if t is not None]
    return sum(t.numel() * t.element_size() for t in tensors)
