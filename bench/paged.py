"""Paged continuous batching of transformers (`generate_batch`): the exact prefix cache that comes with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from transformers import ContinuousBatchingConfig, GenerationConfig

from bench.conditions import Outcome, Setup
from bench.workload import Job, Point

PAGE = 32
BATCH_TOKENS = 256


class Paged:
    """A manager lives for one round, so that the second expansion finds the blocks of the first.

    `generate_batch` is a loop around this manager; its start and stop are not timed.
    """

    def __init__(self, setup: Setup, point: Point) -> None:
        self.counting = False
        self._model = setup.stock
        self._bytes = setup.kv_bytes_per_token
        self._config = GenerationConfig(max_new_tokens=point.new_tokens, do_sample=False, eos_token_id=-1)
        pages = -(-point.longest // PAGE)
        self._paging = {"page_size": PAGE, "num_blocks": pages * (point.branches + 1), "max_batch_tokens": BATCH_TOKENS}
        self.settings: dict[str, Any] = {"engine": "transformers generate_batch", **self._paging}
        self._manager: Any = None

    def begin(self) -> None:
        self._manager = self._model.init_continuous_batching(
            generation_config=self._config,
            continuous_batching_config=ContinuousBatchingConfig(**self._paging),
        )
        self._manager.warmup()
        self._manager.start()

    def expand(self, job: Job) -> Outcome:
        prompts = job.prompts()
        with self._counted() as fed:
            began = perf_counter()
            ids = self._manager.add_requests(inputs=prompts, max_new_tokens=job.new_tokens)
            results = self._collect(len(prompts))
            seconds = perf_counter() - began
        tokens = [list(results[i]) for i in ids]
        steps = sum(len(row) - 1 for row in tokens)
        kv_bytes = paged_tokens(job, PAGE) * self._bytes
        return Outcome(tokens, seconds, sum(fed) - steps if self.counting else None, kv_bytes)

    def end(self) -> None:
        self._manager.stop(block=True)
        self._manager.destroy()
        self._manager = None

    def _collect(self, count: int) -> dict[str, list[int]]:
        results: dict[str, list[int]] = {}
        while len(results) < count:
            result = self._manager.get_result(timeout=1)
            if result is None and not self._manager.is_running():
                raise RuntimeError("the continuous batching thread ended early")
            if result is not None and result.error:
                raise RuntimeError(result.error)
            if result is not None and result.is_finished():
                results[result.request_id] = result.generated_tokens
        return results

    @contextmanager
    def _counted(self) -> Iterator[list[int]]:
        """Numbers of tokens that entered the model meanwhile; nothing is hooked unless `counting`."""
        fed: list[int] = []
        if not self.counting:
            yield fed
            return
        embedding = self._model.get_input_embeddings()
        hook = embedding.register_forward_pre_hook(lambda _, inputs: fed.append(inputs[0].numel()))
        yield fed
        hook.remove()


def paged_tokens(job: Job, page: int) -> int:
    """Room of the pages in use, in tokens: full pages of the shared part once, the rest for each row."""
    shared = len(job.prefix) // page
    length = len(job.prefix) + len(job.hints[0]) + job.new_tokens - 1
    return page * (shared + len(job.hints) * (-(-length // page) - shared))
