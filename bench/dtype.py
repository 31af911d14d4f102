"""`python -m bench.dtype`: what bfloat16 changes on this CPU, in seconds and in answers, against float32.

Both engines read the same real text; the second part of it is fed token by token, and the distributions of the next
token are compared. Greedy continuations of the first part are compared token by token.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from bench.environment import environment
from bench.workload import Point, Text, Tokens
from engine.base import BranchRequest, StepRule
from engine.local import LocalEngine
from engine.row_kv import RowKV

DTYPES = ("float32", "bfloat16")


def passages(engine: LocalEngine, count: int, length: int) -> list[Tokens]:
    """Passages of real text, each from a place of its own."""
    text = Text(engine.codec)
    return [text.job(Point(length, 1, 1)).shared[0] for _ in range(count)]


def distributions(engine: LocalEngine, texts: list[Tokens], given: int) -> Tensor:
    """Log-probabilities [texts, length - given, V] of the token after each one from `given` on."""
    rows = [RowKV(engine.shape, [], len(text)) for text in texts]
    engine.forward([(row, text[:given], False) for row, text in zip(rows, texts, strict=True)])
    found = []
    for at in range(given, len(texts[0])):
        logits = engine.forward([(row, text[at : at + 1], True) for row, text in zip(rows, texts, strict=True)])
        found.append(logits.float().log_softmax(-1))
    return torch.stack(found, dim=1)


def continued(engine: LocalEngine, texts: list[Tokens], new: int) -> tuple[list[Tokens], float]:
    """Greedy continuations of all texts in one batch, and the seconds of a decode step (prefill is taken off)."""
    seconds = []
    for length in (1, new):
        rule = StepRule(max_tokens=length)
        asks = [BranchRequest(str(i), (text,), (0,), rule, 0.0) for i, text in enumerate(texts)]
        began = perf_counter()
        results = engine.expand(asks)
        seconds.append(perf_counter() - began)
        engine.release([event.key for event in engine.snapshot()])
    return [result.branches[0].token_ids for result in results], (seconds[1] - seconds[0]) / (new - 1)


def compared(exact: Tensor, other: Tensor) -> dict[str, float]:
    """KL(exact || other) in nats, mean and largest, and how often both prefer the same token."""
    kl = (exact.exp() * (exact - other)).sum(-1).flatten()
    same = (exact.argmax(-1) == other.argmax(-1)).float()
    return {"kl_mean": float(kl.mean()), "kl_max": float(kl.max()), "top1_agreement": float(same.mean())}


def measure(options: argparse.Namespace, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """One row a dtype; decode steps alternate between the engines over the rounds."""
    engines = {name: LocalEngine.load(options.model, dtype=name, threads=options.threads) for name in DTYPES}
    for engine in engines.values():
        engine.codec.eos_ids = frozenset()
    texts = passages(engines["float32"], options.texts, options.given + options.tokens)
    given = [text[: options.given] for text in texts]
    steps: dict[str, list[float]] = {name: [] for name in DTYPES}
    replies: dict[str, list[Tokens]] = {}
    for number in range(options.rounds + 1):
        tell(f"round {number} of {options.rounds}")
        for name, engine in engines.items():
            replies[name], step = continued(engine, given, options.tokens)
            if number:
                steps[name].append(step)
    exact = distributions(engines["float32"], texts, options.given)
    rows = []
    for name, engine in engines.items():
        other = exact if name == "float32" else distributions(engine, texts, options.given)
        equal = [a == b for a, b in zip(replies[name], replies["float32"], strict=True)]
        rows.append(
            {
                "dtype": name,
                "step_ms_median": median(steps[name]) * 1e3,
                "step_ms_all": [step * 1e3 for step in steps[name]],
                "speed_up": median(steps["float32"]) / median(steps[name]),
                **compared(exact, other),
                "greedy_equal": sum(equal) / len(equal),
                "tokens": other.shape[0] * other.shape[1],
                "engine": engine.settings,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--texts", type=int, default=8, help="rows of the batch")
    parser.add_argument("--given", type=int, default=256, help="tokens read before anything is compared")
    parser.add_argument("--tokens", type=int, default=64, help="tokens compared, and drawn greedily, in each text")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    rows = measure(options, lambda text: None if options.json else print(text, flush=True))
    for row in rows:
        print(
            f"{row['dtype']:9} step {row['step_ms_median']:6.1f} ms ({row['speed_up']:.2f}x)  "
            f"KL {row['kl_mean']:.1e} (max {row['kl_max']:.1e})  top-1 {row['top1_agreement']:.3f}  "
            f"greedy texts equal {row['greedy_equal']:.2f}"
        )
    if options.json:
        print(json.dumps({"rows": rows, "config": {**environment(), **vars(options)}}))


if __name__ == "__main__":
    main()
