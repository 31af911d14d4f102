"""Does the speed-up of KV sharing depend on the model? The given model beside small random ones of other shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean, pstdev
from tempfile import TemporaryDirectory
from typing import Any

from bench.baselines import NoKV
from bench.claims.rows import Row
from bench.conditions import Condition, Setup
from bench.harness import ratio
from bench.ours import Rksc
from bench.workload import Point, Text
from engine.models import resolve

SHAPES: Mapping[str, dict[str, int]] = {
    "6-layers": {"num_hidden_layers": 6},
    "6-layers-all-kv-heads": {"num_hidden_layers": 6, "num_key_value_heads": 0},
}
"""What a random variant changes in the given model's configuration; 0 KV heads: as many as there are heads."""


def speed_ups(setup: Setup, point: Point, rounds: int, tell: Callable[[str], None]) -> dict[str, float]:
    """Seconds of a no-kv expansion / seconds of ours, by random variant: ratios of medians."""
    found = {}
    for name, changes in SHAPES.items():
        tell(f"variant {name}")
        with TemporaryDirectory() as folder:
            _save(setup, Path(folder), changes)
            variant = Setup(resolve(folder), setup.dtype, setup.threads, setup.device)
            found[name] = _speed_up(variant, point, rounds)
    return found


def rows(speed_up: float, variants: Mapping[str, float]) -> list[Row]:
    """Mean and spread over the given model, whose `speed_up` was timed, and its random variants."""
    every = [speed_up, *variants.values()]
    each = ", ".join([f"given model {speed_up:.2f}", *(f"random {name} {v:.2f}" for name, v in variants.items())])
    what = "seconds of a no-kv / an rksc expansion, nothing verified"
    text = f"{what}; mean over models; low, high: smallest and largest; {each}"
    spread = f"population standard deviation over models of: {what}; the paper's five 7B to 10B models were not run"
    return [
        Row("kv_speedup_mean_over_models", None, mean(every), len(every), min(every), max(every), text),
        Row("kv_speedup_std_over_models", 0.02, pstdev(every), len(every), None, None, spread),
    ]


def _save(setup: Setup, folder: Path, changes: Mapping[str, int]) -> None:
    """A random model of the changed shape, with the given model's tokenizer, in transformers format."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    weights, tokenizer = setup.folders()
    config = AutoConfig.from_pretrained(weights)
    for name, value in changes.items():
        setattr(config, name, value or config.num_attention_heads)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: config.num_hidden_layers]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)


def _speed_up(setup: Setup, point: Point, rounds: int) -> float:
    conditions: list[Condition] = [NoKV(setup, point), Rksc(setup, point)]
    text = Text(setup.codec)
    for condition in conditions:
        _expand(condition, text.job(Point(min(point.prefix, 64), point.branches, 2)))
    seconds: list[list[float]] = [[], []]
    for number in range(rounds):
        job = text.job(point)
        outcomes: dict[int, Any] = {i: _expand(conditions[i], job) for i in (number % 2, 1 - number % 2)}
        if setup.dtype == "float32" and outcomes[0].tokens != outcomes[1].tokens:
            raise RuntimeError("a random variant draws other tokens with shared KV than without")
        for i, outcome in outcomes.items():
            seconds[i].append(outcome.seconds)
    return ratio(seconds[0], seconds[1]).median


def _expand(condition: Condition, job: Any) -> Any:
    condition.begin()
    try:
        return condition.expand(job)
    finally:
        condition.end()
