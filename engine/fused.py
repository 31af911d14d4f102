"""Own forward pass for Llama-shaped models: fused QKV and gate/up products, few operations a layer.

Serves Llama, Mistral, Qwen2 and Qwen3 (checked by class name; every load is also checked against the stock model). The
stock module gives its weights away: after `fuse` it must not be used any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import SiLUActivation

from engine.attention import Batch, Scoring
from engine.native import Kernels, kernels
from engine.packing import pack, rows_of

_LINEARS = (
    *(f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)
FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


class FusedLayer(nn.Module):
    """One decoder layer. heads: query heads, KV heads, head dimension."""

    def __init__(self, layer: Any, index: int, heads: tuple[int, int, int], own: Kernels | None) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.index = index
        self.heads = heads
        self.scoring = Scoring(float(attention.scaling), window=_window(attention))
        self.qkv = _joined(attention.q_proj, attention.k_proj, attention.v_proj)
        self.o = attention.o_proj
        self.gate_up = _joined(mlp.gate_proj, mlp.up_proj)
        self.down = mlp.down_proj
        self.activation = mlp.act_fn
        self.silu = isinstance(mlp.act_fn, nn.SiLU | SiLUActivation)
        self.norms = nn.ModuleList([_Norm(layer.input_layernorm, own), _Norm(layer.post_attention_layernorm, own)])
        self.head_norms = nn.ModuleList([_Norm(n, None) for n in _head_norms(attention)])
        self.kernels = own

    def forward(self, x: Tensor, more: Tensor | None, cos: Tensor, sin: Tensor, batch: Batch) -> Tensor:
        """x [N, hidden] += more (what the last layer adds), in place; cos, sin [N, D]. Returns what this layer adds."""
        x_norm = self.norms[0](x, more)
        after = self.norms[1](x, self._attend(x_norm, cos, sin, batch))
        gate_up = self.gate_up(after)
        out: Tensor = self.down(self._gated(gate_up))
        return out

    def _gated(self, gate_up: Tensor) -> Tensor:
        if self.kernels is not None and self.silu:
            return self.kernels.silu_mul(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        out: Tensor = self.activation(gate) * up
        return out

    def _attend(self, x: Tensor, cos: Tensor, sin: Tensor, batch: Batch) -> Tensor:
        queries, keys, dim = self.heads
        states = self.qkv(x).view(x.shape[0], queries + 2 * keys, dim)
        if self.head_norms:
            parts = torch.split(states, [queries, keys, keys], dim=1)
            normed = [norm(part, None) for norm, part in zip(self.head_norms, parts[:2], strict=True)]
            states = torch.cat([*normed, parts[2]], dim=1)
        query, key, value = torch.split(self._turned(states, cos, sin), [queries, keys, keys], dim=1)
        out = batch.attend(self.index, query, key, value, self.scoring)
        result: Tensor = self.o(out.reshape(x.shape[0], queries * dim))
        return result

    def _turned(self, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotary positions for the query and key heads of states [N, H_q + 2 H_kv, D]."""
        queries, keys, _ = self.heads
        if self.kernels is not None:
            self.kernels.rotate(states, cos, sin, queries + keys)
            return states
        turned, value = states[:, : queries + keys], states[:, queries + keys :]
        first, second = turned.chunk(2, dim=-1)
        turned = turned * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]
        return torch.cat([turned, value], dim=1)


class FusedModel(nn.Module):
    """The whole model on packed tokens; `config` is the stock one's."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        body, config = model.model, model.config
        queries = config.num_attention_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // queries
        heads = (queries, config.num_key_value_heads, dim)
        self.config = config
        self.embed = body.embed_tokens
        self.rotary = body.rotary_emb
        weight = body.embed_tokens.weight
        own = kernels(weight.dtype) if weight.device.type == "cpu" else None
        self.layers = nn.ModuleList([FusedLayer(layer, i, heads, own) for i, layer in enumerate(body.layers)])
        self.norm = _Norm(body.norm, own)
        self.head = model.lm_head
        self.tied = model.lm_head.weight is weight
        self._rows: dict[tuple[int, ...], Tensor] = {}

    def forward(self, tokens: Tensor, positions: Tensor, batch: Batch, wanted: Sequence[int]) -> Tensor:
        """tokens, positions [N] -> logits [len(wanted), V] at these packed positions (none wanted: none computed)."""
        x, cos, sin = self.begin(tokens, positions)
        more: Tensor | None = None
        for layer in self.layers:
            more = layer(x, more, cos, sin, batch)
        if not wanted or more is None:
            return x.new_empty(0)
        return self.logits(x, more, torch.tensor(wanted, device=x.device))

    def begin(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """tokens, positions [N] -> x [N, hidden] and cos, sin [N, D], as the first layer takes them."""
        x: Tensor = self.embed(tokens)
        cos, sin = (part[0].contiguous() for part in self.rotary(x[None], positions[None]))
        return x, cos, sin

    def final(self, x: Tensor, more: Tensor, rows: Tensor) -> Tensor:
        """Final norm [R, hidden] of x + more [N, hidden] at packed positions rows [R]; x stays as it is."""
        normed: Tensor = self.norm(x[rows], more[rows])
        return normed

    def logits(self, x: Tensor, more: Tensor, rows: Tensor) -> Tensor:
        """Logits [R, V] of x + more [N, hidden], after any layer, at packed positions rows [R]."""
        logits: Tensor = self.head(self.final(x, more, rows))
        return logits

    def unembedding(self, ids: Sequence[int]) -> Tensor:
        """Rows [len(ids), hidden] of the unembedding, worked out once."""
        key = tuple(ids)
        if key not in self._rows:
            self._rows[key] = self.embed.weight[list(ids)] if self.tied else rows_of(self.head, ids)
        return self._rows[key]


def fuse(model: nn.Module) -> nn.Module:
    """A FusedModel of a family it serves, if its linear layers are plain ones, not quantised or adapted; else the model
    itself. Linear layers are packed where that helps."""
    if type(model).__name__ in FAMILIES and _plain(model):
        model = FusedModel(model)
    pack(model)
    return model


def _plain(model: Any) -> bool:
    read = [attrgetter(*_LINEARS)(layer) for layer in model.model.layers]
    return all(type(linear) is nn.Linear for linear in (model.lm_head, *chain.from_iterable(read)))


class _Norm(nn.Module):
    """RMS normalisation with the weight and epsilon of a stock one."""

    def __init__(self, norm: Any, own: Kernels | None) -> None:
        super().__init__()
        self.weight = norm.weight
        self.eps = float(norm.variance_epsilon)
        self.kernels = own

    def forward(self, x: Tensor, more: Tensor | None) -> Tensor:
        """Normalises x += more; x is changed in place."""
        if self.kernels is not None:
            return self.kernels.add_norm(x, more, self.weight, self.eps)
        if more is not None:
            x += more
        out: Tensor = functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return out


def _window(attention: Any) -> int | None:
    """Sliding window of a layer: its own attribute (Qwen, by layer type), else the model's (Mistral)."""
    if hasattr(attention, "sliding_window"):
        window: int | None = attention.sliding_window
    else:
        window = getattr(attention.config, "sliding_window", None)
    return window


def _head_norms(attention: Any) -> list[Any]:
    """Qwen3 normalises queries and keys per head."""
    return [attention.q_norm, attention.k_norm] if hasattr(attention, "q_norm") else []


def _joined(*linears: nn.Linear) -> nn.Linear:
    """One layer for several that read the same input; the originals are emptied so that no weight is held twice."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    joined = nn.Linear(weight.shape[1], weight.shape[0], bias=bool(biases), device="meta")
    joined.weight = nn.Parameter(weight, requires_grad=False)
    if biases:
        joined.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    for linear in linears:
        linear.weight = nn.Parameter(weight.new_empty(0), requires_grad=False)
    return joined
