"""Start-up check: does the tree attention give this model the logits that its own attention gives?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine import attention
from engine.asks.rope import changing
from engine.kv import KVShape
from engine.packed import Forward
from engine.packing import PLAIN_ROWS
from engine.row_kv import RowKV

_LENGTH, _SPLIT = 48, 33
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 6e-2, torch.float16: 2e-2}


@dataclass(frozen=True, slots=True)
class Probe:
    """Fixed tokens and the logits [V] that the model's own attention gives at their end."""

    tokens: tuple[int, ...]
    expected: torch.Tensor

    @classmethod
    def of(cls, model: Any, stock: str = "eager") -> Probe:
        """Runs the stock model; it is left on the tree attention."""
        vocabulary = model.config.get_text_config().vocab_size
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(0, vocabulary, (1, _LENGTH), generator=generator)
        model.set_attn_implementation(stock)
        with torch.inference_mode():
            ids = tokens.to(next(model.parameters()).device)
            expected = model(input_ids=ids, use_cache=False).logits[0, -1].float()
        model.set_attn_implementation(attention.NAME)
        return cls(tuple(tokens[0].tolist()), expected)

    def mismatch(self, model: Any, shape: KVShape, backend: attention.Attention) -> str | None:
        """None if `model`, fed in pieces through the tree, gives the expected logits, else what differs.

        The largest difference is judged relative to the largest logit, by dtype.
        """
        found = _through_tree(model, shape, self.tokens, backend)
        difference = float((found - self.expected).abs().max() / self.expected.abs().max().clamp_min(1e-6))
        if difference <= _TOLERANCE.get(shape.dtype, 1e-3):
            return None
        return f"the self-test's logits differ by {difference:.1e} of the largest"


def unsupported(model: Any, shape: KVShape | None, backend: attention.Attention) -> tuple[str | None, Probe | None]:
    """Why the tree attention cannot serve this stock model (None: it can), and the probe to check others with."""
    if shape is None:
        return "it has no attention layers with key-value heads", None
    if (reason := _beyond_the_probe(model.config.get_text_config())) is not None:
        return reason, None
    try:
        probe = Probe.of(model)
        return probe.mismatch(model, shape, backend), probe
    except Exception as error:  # any model code may run here; whatever it raises, the plain path is right
        return f"the self-test raised {type(error).__name__}: {error}", None


def _beyond_the_probe(config: Any) -> str | None:
    """What only differs in sequences longer than the probe."""
    if (chunk := getattr(config, "attention_chunk_size", None)) and chunk < config.max_position_embeddings:
        return f"its attention ends at chunks of {chunk} tokens"
    return changing(config)


def kv_shape(model: Any) -> KVShape | None:
    """Layout of the model's KV from its configuration; None for a model without such heads."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    if not heads:
        return None
    parameter = next(model.parameters())
    return KVShape(
        layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        dtype=parameter.dtype,
        device=parameter.device,
    )


def _through_tree(model: Any, shape: KVShape, tokens: Sequence[int], backend: attention.Attention) -> torch.Tensor:
    """Logits of the last token, float32: one chunk, a second one, then a single token, in two rows that share them."""
    forward = Forward(model, shape.device, PLAIN_ROWS, backend)
    first = RowKV(shape, [], len(tokens))
    for part in (tokens[:_SPLIT], tokens[_SPLIT:-1]):
        forward([(first, part, False)])
    rows = [RowKV(shape, first.seen(0), 1) for _ in range(2)]
    return forward([(row, tokens[-1:], True) for row in rows])[1].float()
