"""The engine's own CPU kernel: every span read once; a row's bits depend on neither the batch nor the spans' cuts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.base import Batch, Scoring
from engine.attention.reference import Reference
from engine.native import Kernels

_LANES = 16


@dataclass(slots=True)
class _Plan:
    """A batch's jobs [J, 9] and places [N, 4] as the kernel takes them; pointers are to layer 0."""

    jobs: Tensor
    places: Tensor


class Native:
    """float32 and bfloat16 on CPUs, head dimensions in whole vectors of 16; the reference serves softcap and sinks."""

    name = "native"

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._other = Reference()

    def attend(self, batch: Batch, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        if scoring.softcap is not None or scoring.sinks is not None or query.shape[-1] % _LANES:
            return self._other.attend(batch, layer, query, key, value, scoring)
        if not isinstance(batch.plan, _Plan):
            batch.plan = _plan(batch)
        plan, n = batch.plan, batch.tokens
        rows, keys, values = (_adjacent(t[:n]) for t in (query, key, value))
        if keys.stride(0) != values.stride(0):
            keys, values = keys.contiguous(), values.contiguous()
        numbers = (layer, scoring.scale, scoring.window)
        out = self._kernels.attend(rows, keys, values, (plan.jobs, plan.places, batch.positions), numbers)
        if n == len(query):
            return out
        return torch.cat([out, out.new_zeros(len(query) - n, *out.shape[1:])])


def _plan(batch: Batch) -> _Plan:
    jobs = [
        (
            job.span.k.data_ptr(),
            job.span.v.data_ptr(),
            *job.span.k.stride()[:2],
            job.span.tokens,
            job.start,
            job.first,
            job.last,
            int(job.crossing),
        )
        for job in batch.jobs
    ]
    places = []
    for write in batch.writes:
        buffer = write.buffer
        size = buffer.k.stride(2) * buffer.k.element_size()
        for i in range(write.last - write.first):
            at = (write.at + i) * size
            places.append((buffer.k.data_ptr() + at, buffer.v.data_ptr() + at, *buffer.k.stride()[:2]))
    return _Plan(torch.tensor(jobs, dtype=torch.int64), torch.tensor(places, dtype=torch.int64))


def _adjacent(t: Tensor) -> Tensor:
    """[N, H, D] with a token's heads side by side, as the kernel reads them."""
    return t if t.stride(2) == 1 and t.stride(1) == t.shape[2] else t.contiguous()
