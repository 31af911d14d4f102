"""Sampling by Gumbel-max with counter-based noise.

The noise of token v at step t of a row is a hash of (row key, t, v): it depends on no generator state, so a row draws
the same tokens in any batch, on any worker and in any order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_WIDTHS = (6.0, 12.0, float("inf"))
"""Log-probabilities below the largest that are looked at first: sorting few tokens is much cheaper than all."""


@dataclass(frozen=True, slots=True)
class Draw:
    """tokens [N] int64. Under the model at T = 1: logprob [N] of the tokens, top1 [N] largest probability,
    logprobs [N, V] of all tokens."""

    tokens: Tensor
    logprob: Tensor
    top1: Tensor
    logprobs: Tensor


def draw(logits: Tensor, keys: Tensor, steps: Tensor, temperature: Tensor, top_p: Tensor) -> Draw:
    """One token per row. logits [N, V]; keys, steps [N] int64; temperature (0: greedy), top_p [N] float32."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    best = logprobs.argmax(dim=-1)
    tokens = best.clone()
    for row in torch.nonzero(temperature > 0).flatten().tolist():
        tokens[row] = _sample(logprobs[row], keys[row], steps[row], float(temperature[row]), float(top_p[row]))
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    return Draw(tokens, chosen, logprobs.gather(1, best[:, None])[:, 0].exp(), logprobs)


def _sample(logprobs: Tensor, key: Tensor, step: Tensor, temperature: float, top_p: float) -> Tensor:
    """Gumbel-max over the smallest set of tokens whose tempered probability reaches `top_p`. logprobs [V]"""
    scaled = logprobs / temperature
    if top_p >= 1.0:
        ids = torch.arange(scaled.shape[0], device=scaled.device)
    else:
        scaled, ids = _nucleus(scaled, top_p)
    return ids[(scaled + gumbel(key, step, ids)).argmax()]


def _nucleus(scaled: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Log-weights and ids of the smallest set that reaches `top_p`, likeliest first, equal ones by id."""
    log_total, top = torch.logsumexp(scaled, dim=0), scaled.max()
    for width in _WIDTHS:
        ids = torch.nonzero(scaled >= top - width).flatten()
        values, order = torch.sort(scaled[ids], descending=True, stable=True)
        mass = torch.cumsum((values - log_total).exp(), dim=0)
        if float(mass[-1]) >= top_p:
            break
    size = int((mass < top_p).sum()) + 1
    return values[:size], ids[order[:size]]


def gumbel(key: Tensor, step: Tensor, ids: Tensor) -> Tensor:
    """Standard Gumbel noise for token `ids` [K] int64 at `step` of the stream `key`, float32."""
    mixed = _mix(_mix(key + step * _GOLDEN) + ids)
    uniform = ((mixed >> 41) & 0x7FFFFF).float().add_(0.5).div_(1 << 23)  # 24 bits with the half: never rounded to 1
    return -torch.log(-torch.log(uniform))


_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_M1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_M2 = -7723592293110705685  # 0x94D049BB133111EB


def _mix(x: Tensor) -> Tensor:
    """splitmix64 finaliser (Steele et al. 2014) on wrapping int64; shifts are made logical by masking."""
    x = x + _GOLDEN
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _M1
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _M2
    return x ^ ((x >> 31) & 0x1FFFFFFFF)
