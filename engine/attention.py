"""Attention over shared prefixes for unmodified transformers models, registered as the attention implementation "rksc".

The model runs on packed tokens [1, N] without a cache or mask; each attention layer hands its new K/V to a `Batch`,
whose cohorts hold what their rows attend to. A cohort's rows share a prefix (stored once) and own a private rest.

Reproducible by construction on CPUs: a matrix product there gives each output row the same bits for any number of
rows from 16 upwards (8 for the small products here; below that other kernels run), so row counts are padded, keys come
in whole blocks, and values are summed in blocks of 128 at absolute positions. A row's output then depends neither on
the batch nor on how the prefix is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

BLOCK = 128
MIN_ROWS = 16
_BMM_ROWS = 8
NAME = "rksc"


@dataclass(frozen=True, slots=True)
class Scoring:
    """How scores become weights: softmax over `cap(scale * q k)`, cap(x) = softcap * tanh(x / softcap).

    window: a query sees its last `window` positions only (None: all). sinks [H_q]: one more logit a head that takes
    weight and gives no value.
    """

    scale: float
    softcap: float | None = None
    window: int | None = None
    sinks: Tensor | None = None

    def weights(self, scores: Tensor, step: Step) -> Tensor:
        """scores [H_kv, R, G, q, T] -> weights of the same shape; softmax in float32."""
        scores *= self.scale
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        scores[..., step.start :] += step.mask[:, None]
        if self.window is not None and step.longest > self.window:
            positions = torch.arange(scores.shape[-1], device=scores.device)
            oldest = step.positions - self.window + 1
            scores = scores.masked_fill(positions < oldest[:, None, :, None], float("-inf"))
        if self.sinks is None:
            return torch.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)
        kv_heads, rows, group, q = scores.shape[:4]
        sinks = self.sinks.to(scores.dtype).view(kv_heads, 1, group, 1, 1).expand(-1, rows, -1, q, -1)
        weights = torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1, dtype=torch.float32)
        return weights[..., :-1].to(scores.dtype)


@dataclass(frozen=True, slots=True)
class Step:
    """What one forward pass adds to a cohort, worked out once for all layers.

    start: first private position S. columns: private columns looked at, whole blocks. mask [R or 1, q, columns]: 0
    where a query may look, else -inf. positions [R or 1, q] of the queries. longest: largest position + 1. write: where
    the new columns go in [R, H_kv, C, D], row by row where rows have different lengths.
    """

    start: int
    columns: int
    mask: Tensor
    positions: Tensor
    longest: int
    write: slice | tuple[Tensor, Tensor]

    @classmethod
    def of(cls, cohort: Cohort, q: int) -> Step:
        device, dtype = cohort.private_k.device, cohort.private_k.dtype
        start, most = cohort.shared_k.shape[2], max(cohort.filled)
        columns = -(-(most + q) // BLOCK) * BLOCK
        alike = min(cohort.filled) == most
        first = torch.tensor([most] if alike else cohort.filled, device=device)
        new = first[:, None] + torch.arange(q, device=device)
        hidden = torch.arange(columns, device=device) > new[:, :, None]
        mask = torch.zeros(hidden.shape, device=device, dtype=dtype).masked_fill(hidden, float("-inf"))
        rows = torch.arange(cohort.rows, device=device)
        write = slice(most, most + q) if alike else (rows[:, None], new)
        return cls(start, columns, mask, start + new, start + most + q, write)


@dataclass(slots=True)
class Cohort:
    """Rows that share a prefix; behind it each row has its own length.

    shared_k/v: [L, H_kv, S, D], S a multiple of BLOCK. private_k/v: [L, R, H_kv, C, D], C a multiple of BLOCK; columns
    [0, filled[r]) of row r hold positions [S, S + filled[r]).
    """

    shared_k: Tensor
    shared_v: Tensor
    private_k: Tensor
    private_v: Tensor
    filled: list[int]

    @property
    def rows(self) -> int:
        return self.private_k.shape[1]

    @property
    def length(self) -> int:
        """Tokens that the first row can attend to."""
        return self.lengths[0]

    @property
    def lengths(self) -> list[int]:
        """Tokens that each row can attend to."""
        return [self.shared_k.shape[2] + filled for filled in self.filled]

    def reserve(self, q: int) -> None:
        """Room for `q` more tokens a row, in whole blocks, zeroed: a weight of zero must meet a finite value."""
        self._widen(max(self.filled) + q)

    def keep(self, rows: Sequence[int]) -> None:
        """Drop the rows that are not named."""
        index = torch.tensor(rows, device=self.private_k.device)
        self.private_k = self.private_k.index_select(1, index)
        self.private_v = self.private_v.index_select(1, index)
        self.filled = [self.filled[row] for row in rows]

    def join(self, other: Cohort) -> None:
        """Take over the rows of a cohort with the same shared prefix."""
        columns = max(self.private_k.shape[3], other.private_k.shape[3])
        self._widen(columns)
        other._widen(columns)
        self.private_k = torch.cat([self.private_k, other.private_k], dim=1)
        self.private_v = torch.cat([self.private_v, other.private_v], dim=1)
        self.filled += other.filled

    def _widen(self, columns: int) -> None:
        missing = columns - self.private_k.shape[3]
        if missing > 0:
            pad = (0, 0, 0, -(-missing // BLOCK) * BLOCK)
            self.private_k = nn.functional.pad(self.private_k, pad)
            self.private_v = nn.functional.pad(self.private_v, pad)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring, step: Step) -> Tensor:
        """Append K/V of `q` new tokens a row, attend causally. query [H_q, R, q, D]; key, value [H_kv, R, q, D]."""
        heads, rows, q, dim = query.shape
        kv_heads = key.shape[0]
        private_k, private_v = self.private_k[layer], self.private_v[layer]
        _write(private_k, key, step.write)
        _write(private_v, value, step.write)
        start, group = step.start, heads // kv_heads
        # [H_kv, R, G * q, D]: the G query heads of a KV head become rows of one product
        folded = query.reshape(kv_heads, group, rows, q, dim).transpose(1, 2).reshape(kv_heads, rows, group * q, dim)
        scores = folded.new_empty(kv_heads, rows, group * q, start + step.columns)
        if start:
            flat = folded.reshape(kv_heads, rows * group * q, dim)
            shared = _rows_product(flat, self.shared_k[layer].transpose(1, 2))
            scores[..., :start] = shared.view(kv_heads, rows, group * q, start)
        own = _rows_product(folded.transpose(0, 1), private_k[:, :, : step.columns].transpose(2, 3))
        scores[..., start:] = own.transpose(0, 1)
        weights = scoring.weights(scores.view(kv_heads, rows, group, q, -1), step)
        out = self._values(layer, weights.reshape(kv_heads, rows, group * q, -1), private_v)
        return out.view(kv_heads, rows, group, q, dim).transpose(1, 2).reshape(heads, rows, q, dim)

    def _values(self, layer: int, weights: Tensor, private_v: Tensor) -> Tensor:
        """Weighted values, summed block by block in order of position. [H_kv, R, G * q, D]"""
        kv_heads, rows, folded, total = weights.shape
        start, shared_v = self.shared_k.shape[2], self.shared_v[layer]
        out = weights.new_zeros(kv_heads, rows, folded, private_v.shape[-1])
        for at in range(0, start, BLOCK):
            block = weights[..., at : at + BLOCK].reshape(kv_heads, rows * folded, BLOCK)
            out += _rows_product(block, shared_v[:, at : at + BLOCK]).view_as(out)
        own = weights.transpose(0, 1)
        for at in range(start, total, BLOCK):
            block_v = private_v[:, :, at - start : at - start + BLOCK]
            out += _rows_product(own[..., at : at + BLOCK], block_v).transpose(0, 1)
        return out


class Batch:
    """Cohorts in the order their tokens are packed: cohort by cohort, row by row, `q` tokens a row."""

    def __init__(self, cohorts: Sequence[tuple[Cohort, int]]) -> None:
        for cohort, q in cohorts:
            cohort.reserve(q)
        self._parts = [(cohort, q, Step.of(cohort, q)) for cohort, q in cohorts]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """query [H_q, N, D]; key, value [H_kv, N, D] -> [H_q, N, D]; tokens behind the last row are padding."""
        out = torch.zeros_like(query)
        at = 0
        for cohort, q, step in self._parts:
            n = cohort.rows * q
            part = [t[:, at : at + n].view(t.shape[0], cohort.rows, q, -1) for t in (query, key, value)]
            out[:, at : at + n] = cohort.attend(layer, part[0], part[1], part[2], scoring, step).flatten(1, 2)
            at += n
        return out

    def advance(self) -> None:
        """Count the tokens that the layers have just appended."""
        for cohort, q, _ in self._parts:
            cohort.filled = [filled + q for filled in cohort.filled]


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    rksc: Batch | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """transformers attention interface: query [1, H_q, N, D], key and value [1, H_kv, N, D] -> [1, N, H_q, D]."""
    if rksc is None:
        raise RuntimeError("attention 'rksc' needs the model to be called with rksc=Batch(...)")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    scoring = Scoring(scale, softcap, sliding_window, s_aux)
    out = rksc.attend(int(module.layer_idx), query[0], key[0], value[0], scoring)  # type: ignore[arg-type]
    return out.transpose(0, 1)[None], None


def register() -> str:
    """Make the implementation known to transformers (idempotent); returns its name."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attention)
    return NAME


def _rows_product(left: Tensor, right: Tensor) -> Tensor:
    """left [..., M, K] @ right [..., K, N] with M padded to _BMM_ROWS (see the module's note)."""
    rows = left.shape[-2]
    if rows >= _BMM_ROWS:
        return left @ right
    padded = left.new_zeros(*left.shape[:-2], _BMM_ROWS, left.shape[-1])
    padded[..., :rows, :] = left
    return (padded @ right)[..., :rows, :]


def _write(private: Tensor, new: Tensor, where: slice | tuple[Tensor, Tensor]) -> None:
    """Put new [H_kv, R, q, D] into private [R, H_kv, C, D]."""
    if isinstance(where, slice):
        private[:, :, where] = new.transpose(0, 1)
    else:
        private[where[0], :, where[1]] = new.permute(1, 2, 0, 3)
