"""`python -m bench.gpu`: engine parity and the gain of prefix sharing on a CUDA device, with random weights only.

Needs torch and transformers, no Ray, no model files. Writes one JSON object; `--shape tiny --device cpu` is a dry run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from bench.baselines import cache_argument, greedy, tensor
from engine import attention
from engine.base import BranchRequest, StepRule
from engine.fused import fuse
from engine.local import LocalEngine
from engine.selftest import kv_shape, unsupported
from engine.tokenizer import ByteCodec

SHAPES = {
    "7b": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32},
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
}
VOCABULARY = 32000


def random_model(shape: str, device: torch.device, dtype: torch.dtype) -> Any:
    """A Llama of the given shape with random weights, built on the device."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = SHAPES[shape]
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        num_key_value_heads=sizes["num_attention_heads"] // 4,
        max_position_embeddings=8192,
        **sizes,
    )
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    attention.register()
    return model.eval().requires_grad_(False)


def parity(shape: str, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Self-test of the tree attention and of the fused forward against the stock model."""
    model = random_model(shape, device, dtype)
    layout = kv_shape(model)
    way = attention.choose("auto", device, dtype)
    reason, probe = unsupported(model, layout, way)
    fused = probe.mismatch(fuse(model), layout, way) if probe is not None and layout is not None else "no probe"
    return {
        "shape": shape,
        "dtype": str(dtype),
        "attention": way.name,
        "tree": reason or "equal",
        "fused": fused or "equal",
    }


class Sharing:
    """Conditions on one model: prefix tokens P, B branches of distinct hints, greedy, `new` tokens each."""

    def __init__(self, model: Any, prefix: int, branches: int, new: int) -> None:
        generator = torch.Generator().manual_seed(1)
        draw = torch.randint(0, VOCABULARY, (prefix + 8 * branches,), generator=generator).tolist()
        self.prefix = tuple(draw[:prefix])
        self.hints = [tuple(draw[prefix + 8 * i : prefix + 8 * i + 8]) for i in range(branches)]
        self.model, self.new = model, new

    def no_kv(self) -> list[list[int]]:
        """Every branch prefills its whole prompt; equal lengths, so no padding is needed."""
        prompts = tensor(self.model, [[*self.prefix, *hint] for hint in self.hints])
        return greedy(self.model, prompts, DynamicCache(config=self.model.config), self.new)

    @torch.inference_mode()
    def exact_cache(self) -> list[list[int]]:
        """One prefill of the prefix, its cache repeated per row."""
        cache = DynamicCache(config=self.model.config)
        held = cache_argument(self.model, cache)
        self.model.base_model(input_ids=tensor(self.model, [list(self.prefix)]), use_cache=True, **held)
        cache.batch_repeat_interleave(len(self.hints))
        return greedy(self.model, tensor(self.model, [list(hint) for hint in self.hints]), cache, self.new)

    def rksc(self, engine: LocalEngine) -> list[list[int]]:
        rule = StepRule(max_tokens=self.new)
        asks = [BranchRequest(str(i), (self.prefix, hint), (0,), rule, 0.0) for i, hint in enumerate(self.hints)]
        return [list(result.branches[0].token_ids) for result in engine.expand(asks)]


class _Endless(ByteCodec):
    """No end-of-sequence token, so that every branch has its full length."""

    eos_ids = frozenset()

    def decode(self, token_ids: Sequence[int]) -> str:
        return ""


def measure(sharing: Sharing, engine: LocalEngine, rounds: int, sync: Callable[[], None]) -> list[dict[str, Any]]:
    """Alternating rounds after one that is not counted; the engine starts each round with an empty tree."""
    conditions: dict[str, Callable[[], list[list[int]]]] = {
        "no-kv": sharing.no_kv,
        "exact-cache": sharing.exact_cache,
        "rksc": lambda: sharing.rksc(engine),
    }
    seconds: dict[str, list[float]] = {name: [] for name in conditions}
    outputs: dict[str, list[list[int]]] = {}
    for round_number in range(rounds + 1):
        for name, run in conditions.items():
            for segment in [s.key for s in engine.tree.segments() if s.start == 0]:
                engine.release([segment])
            sync()
            began = time.perf_counter()
            outputs[name] = run()
            sync()
            if round_number:
                seconds[name].append(time.perf_counter() - began)
    ours = statistics.median(seconds["rksc"])
    return [
        {
            "condition": name,
            "prefix": len(sharing.prefix),
            "branches": len(sharing.hints),
            "seconds_median": statistics.median(times),
            "seconds_all": times,
            "times_rksc": statistics.median(times) / ours,
            "tokens_equal_to_rksc": _agreement(outputs[name], outputs["rksc"]),
        }
        for name, times in seconds.items()
    ]


def _agreement(a: list[list[int]], b: list[list[int]]) -> float:
    """Share of rows with equal tokens (random weights in bfloat16 have near ties; float32 should give 1)."""
    return sum(x == y for x, y in zip(a, b, strict=True)) / len(a)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="7b")
    parser.add_argument("--prefix", type=int, default=1024)
    parser.add_argument("--branches", type=int, default=8)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("bench/results/gpu.json"))
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device here; --device cpu --shape tiny is a dry run")
    torch.backends.cuda.matmul.allow_tf32 = False
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    report = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "parity": [parity("tiny", device, torch.float32), parity(options.shape, device, dtype)],
    }
    stock, other = random_model(options.shape, device, dtype), random_model(options.shape, device, dtype)
    other.set_attn_implementation(attention.NAME)
    engine = LocalEngine(fuse(other), _Endless(8192), "gpu")
    sharing = Sharing(stock, options.prefix, options.branches, options.new)
    sync = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    report["rows"] = measure(sharing, engine, options.rounds, sync)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
