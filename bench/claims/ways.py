"""Ways to expand and to verify, timed apart: stock transformers without and with an exact prefix cache, and ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from bench.baselines import ExactCache, NoKV, cache_argument, tensor
from bench.claims.questions import Questions
from bench.conditions import Outcome, Setup
from bench.ours import Rksc
from bench.workload import Job, Point
from engine.base import ScoreQuery
from engine.labels import Labels
from engine.local import LocalEngine


@dataclass(slots=True)
class Measured:
    """One round of one way. seconds, cpu_s (all threads of this process), fed (tokens that entered the model) and
    p_yes (a branch each) by part.
    """

    tokens: list[list[int]]
    confidences: list[float] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)
    fed: dict[str, int] = field(default_factory=dict)
    p_yes: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def expanding(cls, part: str, expand: Callable[[Job], Outcome], job: Job) -> Measured:
        began = process_time()
        outcome = expand(job)
        return cls(outcome.tokens, seconds={part: outcome.seconds}, cpu_s={part: process_time() - began})

    def verify(self, part: str, read: Callable[[], Sequence[float]], fed: int) -> None:
        began, began_cpu = perf_counter(), process_time()
        answers = list(read())
        self.seconds[part], self.cpu_s[part] = perf_counter() - began, process_time() - began_cpu
        self.fed[part] = fed
        self.p_yes[part] = answers


class StockNoKV(NoKV):
    """Every branch prefills its prompt, and again its whole verification prompt."""

    parts = ("expand:no-kv", "verify:reread")

    def __init__(self, setup: Setup, point: Point) -> None:
        super().__init__(setup, point)
        self._labels, self._questions = Labels.of(setup.codec), Questions.of(setup.codec)

    def measure(self, job: Job) -> Measured:
        measured = Measured.expanding("expand:no-kv", self.expand, job)
        shared = self._questions.shared(job)
        prompts = [[*shared, *self._questions.own(tuple(row))] for row in measured.tokens]
        measured.verify("verify:reread", lambda: self._read(prompts), sum(map(len, prompts)))
        return measured

    @torch.inference_mode()
    def _read(self, prompts: list[list[int]]) -> list[float]:
        ids = tensor(self._model, prompts)
        return _p_yes(self._labels, self._model(input_ids=ids, use_cache=False, logits_to_keep=1).logits)


class StockExactCache(ExactCache):
    """KV of one prefill repeated for each branch; three ways to verify that reuse exactly equal token prefixes.

    `separate`: the verifier's own prompt, whose part up to the answer is read once. `problem-first`: a separate prompt
    that begins with the problem as the branch has it. `continuation`: the question behind the branch's own KV.
    """

    parts = ("expand:exact-cache", "verify:continuation", "verify:problem-first", "verify:separate")

    def __init__(self, setup: Setup, point: Point) -> None:
        super().__init__(setup, point)
        self._labels, self._questions = Labels.of(setup.codec), Questions.of(setup.codec)

    def measure(self, job: Job) -> Measured:
        measured = Measured.expanding("expand:exact-cache", self.expand, job)
        ask, rows = self._questions, measured.tokens
        behind = [[row[-1], *ask.follow_up_tokens] for row in rows]
        own = [list(ask.own(tuple(row))) for row in rows]
        problem_first = [[*ask.lead, *row] for row in own]
        shared = ask.shared(job)
        measured.verify("verify:continuation", lambda: self._continue(behind), _size(behind))
        measured.verify(
            "verify:problem-first",
            lambda: self._continue(problem_first, keep=len(job.prefix)),
            _size(problem_first),
        )
        measured.verify("verify:separate", lambda: self._separate(shared, own), len(shared) + _size(own))
        return measured

    @torch.inference_mode()
    def _continue(self, rows: list[list[int]], keep: int | None = None) -> list[float]:
        """Read rows behind the first `keep` tokens of the branches' KV (None: all of it), and drop their KV."""
        cache, length = self._cache, self._cache.get_seq_length()
        _shorten(cache, length if keep is None else keep)
        held = cache_argument(self._model, cache)
        logits = self._model(input_ids=tensor(self._model, rows), use_cache=True, logits_to_keep=1, **held).logits
        _shorten(cache, length if keep is None else keep)
        return _p_yes(self._labels, logits)

    @torch.inference_mode()
    def _separate(self, shared: Sequence[int], own: list[list[int]]) -> list[float]:
        cache = DynamicCache(config=self._model.config)
        held = cache_argument(self._model, cache)
        self._model.base_model(input_ids=tensor(self._model, [list(shared)]), use_cache=True, **held)
        cache.batch_repeat_interleave(len(own))
        logits = self._model(input_ids=tensor(self._model, own), use_cache=True, logits_to_keep=1, **held).logits
        return _p_yes(self._labels, logits)


class Ours(Rksc):
    """The engine: P(yes) by continuation, and of the verifier's separate prompts (exact tier across branches)."""

    parts = ("expand:rksc", "verify:rksc", "verify:rksc-separate")

    def __init__(self, setup: Setup, point: Point) -> None:
        super().__init__(setup, point)
        self._questions = Questions.of(setup.codec)

    @property
    def engine(self) -> LocalEngine:
        return self._engine

    def measure(self, job: Job) -> Measured:
        measured = Measured.expanding("expand:rksc", self.expand, job)
        measured.confidences = self.confidences
        ask = self._questions
        rows = [tuple(row) for row in measured.tokens]
        behind = [
            ScoreQuery(str(i), (*job.shared, hint, row), ask.follow_up)
            for i, (hint, row) in enumerate(zip(job.hints, rows, strict=True))
        ]
        apart = [ScoreQuery(str(i), (ask.shared(job), row), ask.closing) for i, row in enumerate(rows)]
        for part, queries in (("verify:rksc", behind), ("verify:rksc-separate", apart)):
            self._verify(measured, part, queries)
        return measured

    def _verify(self, measured: Measured, part: str, queries: list[ScoreQuery]) -> None:
        results: list[Any] = []

        def read() -> list[float]:
            results.extend(self._engine.score(queries))
            return [result.p_yes for result in results]

        measured.verify(part, read, 0)
        errors = [result.error for result in results if result.error]
        if errors:
            raise RuntimeError(errors[0])
        measured.fed[part] = sum(result.usage.prefilled + result.usage.scored for result in results)


WAYS = (StockNoKV, StockExactCache, Ours)


def _p_yes(labels: Labels, logits: Tensor) -> list[float]:
    """logits [B, 1, V]"""
    return [labels.p_yes(row) for row in logits[:, -1]]


def _shorten(cache: Any, length: int) -> None:
    """Keep the first `length` positions; `DynamicCache.crop` means different things in different versions."""
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[..., :length, :], layer.values[..., :length, :]


def _size(rows: Sequence[Sequence[int]]) -> int:
    return sum(map(len, rows))
