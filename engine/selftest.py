"""Start-up check: does the tree attention give this model the logits that its own attention gives?"""

from __future__ import annotations

from typing import Any

import torch

from engine import attention, kv
from engine.kv_tree import KVTree
from engine.packed import Forward

_LENGTH, _SPLIT = 48, 33
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 6e-2, torch.float16: 2e-2}


def unsupported(model: Any, shape: kv.KVShape | None, stock: str = "eager") -> str | None:
    """None if a sequence fed in pieces through "rksc" equals the stock attention, else the reason in words.

    The largest logit difference is judged relative to the largest logit, by dtype.
    """
    if shape is None:
        return "it has no attention layers with key-value heads"
    tokens = _probe(model)
    try:
        model.set_attn_implementation(stock)
        with torch.inference_mode():
            expected = model(input_ids=tokens, use_cache=False).logits[0, -1].float()
        model.set_attn_implementation(attention.NAME)
        found = _through_tree(model, shape, tokens[0].tolist())
    except Exception as error:  # any model code may run here; whatever it raises, the plain path is right
        return f"the self-test raised {type(error).__name__}: {error}"
    difference = float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-6))
    if difference > _TOLERANCE.get(shape.dtype, 1e-3):
        return f"the self-test's logits differ by {difference:.1e} of the largest"
    return None


def kv_shape(model: Any) -> kv.KVShape | None:
    """Layout of the model's KV from its configuration; None for a model without such heads."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    if not heads:
        return None
    parameter = next(model.parameters())
    return kv.KVShape(
        layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        dtype=parameter.dtype,
        device=parameter.device,
    )


def _probe(model: Any) -> torch.Tensor:
    """Fixed token ids [1, _LENGTH] within the vocabulary."""
    vocabulary = model.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, vocabulary, (1, _LENGTH), generator=generator)
    return tokens.to(next(model.parameters()).device)


def _through_tree(model: Any, shape: kv.KVShape, tokens: list[int]) -> torch.Tensor:
    """Logits of the last token, float32: one chunk, a second one, then a single token, in two rows."""
    forward = Forward(model, shape.device, attention.MIN_ROWS)
    cohort = kv.cohort(KVTree("self-test"), shape, [], 2)
    for part in (tokens[:_SPLIT], tokens[_SPLIT:-1]):
        forward([(cohort, [part, part], False)])
    return forward([(cohort, [tokens[-1:], tokens[-1:]], True)])[1].float()
