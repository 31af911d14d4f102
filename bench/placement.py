"""Placement policies on real Ray, four engine actors: `python -m bench.placement [--quick] [--json] [--save]`.

Every policy solves the same problems with the same seeds; all give the same trees, which is checked. First simulated
engines that sleep for as long as they say, then a tiny random Llama. A last part solves the problems on one engine and
on four.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import ray

from actors.policies import registry
from bench.environment import environment
from bench.harness import ratio
from bench.markdown import markdown
from bench.tiny_llama import save_tiny_llama
from orchestrator import Orchestrator, SolveResult

_RESULTS = Path(__file__).parent / "results" / "placement.json"
_COLUMNS = ("engines", "policy", "makespan s", "x best", "spread", "prefilled", "reused", "max load", "mispredicted")
_ENGINES = 4
_SIMULATED = {"step_s": 0.004, "prefill_rate": 4000.0, "per_call_s": 0.004, "depth": 8, "realtime": True}


@dataclass(slots=True)
class Series:
    """One policy: seconds of each round; tokens, loads and mispredicted tokens of the last one."""

    seconds: list[float] = field(default_factory=list)
    prefilled: list[int] = field(default_factory=list)
    reused: int = 0
    max_load: float = 0.0
    mispredicted: int = 0
    trees: tuple[object, ...] = ()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer problems and rounds")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--policies", default=",".join(registry.names()))
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    parser.add_argument("--save", action="store_true", help=f"write {_RESULTS.name}")
    args = parser.parse_args(argv)
    policies = [registry.check(name) for name in args.policies.split(",")]
    rounds = args.rounds or (1 if args.quick else 3)
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = _measure(policies, rounds, args.quick, Path(folder))
    finally:
        ray.shutdown()
    if args.save:
        _RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found) if args.json else _shown(found))
    return 0


def _measure(policies: Sequence[str], rounds: int, quick: bool, folder: Path) -> dict[str, Any]:
    parts: dict[str, dict[str, Any]] = {
        "simulated": {"model": "simulated", "simulated": _SIMULATED, "max_step_tokens": 64},
        "tiny": {
            "model": str(save_tiny_llama(folder / "llama")),
            "dtype": "float32",
            "device": "cpu",
            "max_step_tokens": 16,
            "step_tokens": 12,
        },
    }
    questions = [f"What is {17 * i} + {i}? " + "Think about it. " * 8 for i in range(8 if quick else 24)]
    rows = []
    for name, options in parts.items():
        series = {policy: Series() for policy in policies}
        for number in range(rounds):
            for policy in _turned(policies, number):
                _round(series[policy], {**options, "placement": policy, "engines": _ENGINES}, questions)
        _require_equal(series)
        rows += _rows(name, series)
    one, four = Series(), Series()
    for _ in range(rounds):
        _round(one, {**parts["simulated"], "engines": 1}, questions)
        _round(four, {**parts["simulated"], "engines": _ENGINES}, questions)
    gain = ratio(one.seconds, four.seconds)
    scaling = {"seconds_one": one.seconds, "seconds_four": four.seconds, "gain": gain.median}
    scaling |= {"gain_low": gain.low, "gain_high": gain.high}
    return {
        "environment": environment(),
        "rounds": rounds,
        "problems": len(questions),
        "rows": rows,
        "scaling": scaling,
    }


def _turned(policies: Sequence[str], number: int) -> list[str]:
    """Each round begins with another policy."""
    at = number % len(policies)
    return [*policies[at:], *policies[:at]]


def _round(series: Series, options: Mapping[str, Any], questions: Sequence[str]) -> None:
    with Orchestrator(gpus_per_engine=0, threads=1, concurrency=16, **options) as orchestrator:
        orchestrator.start()
        began = time.perf_counter()
        results = orchestrator.solve_many(questions, "tot", seed=1, b=4, k=4, max_depth=8)
        series.seconds.append(time.perf_counter() - began)
    costs = [result.cost for result in results]
    series.prefilled.append(sum(cost.prefilled for cost in costs))
    series.reused = sum(sum(cost.reused.values()) for cost in costs)
    series.mispredicted = sum(cost.mispredicted for cost in costs)
    work = {f"engine-{i}": 0 for i in range(int(options["engines"]))}
    for result in results:
        for name, row in result.engines.items():
            work[name] += row["generated"]
    series.max_load = max(work.values()) / (sum(work.values()) / len(work))
    series.trees = tuple(_facts(result) for result in results)


def _facts(result: SolveResult) -> object:
    nodes = [{key: value for key, value in node.items() if key != "engine"} for node in result.tree.to_json()["nodes"]]
    return result.answer, result.stop_reason, json.dumps(nodes, sort_keys=True)


def _require_equal(series: Mapping[str, Series]) -> None:
    first, *others = series.values()
    for name, other in zip(list(series)[1:], others, strict=True):
        if other.trees != first.trees:
            raise RuntimeError(f"policy {name!r} gave other trees than {next(iter(series))!r}")


def _rows(engines: str, series: Mapping[str, Series]) -> list[dict[str, Any]]:
    best = min(series.values(), key=lambda one: median(one.seconds))
    rows = []
    for policy, one in series.items():
        against = ratio(one.seconds, best.seconds)
        rows.append(
            {
                "engines": engines,
                "policy": policy,
                "makespan_s": median(one.seconds),
                "times_best": against.median,
                "times_best_low": against.low,
                "times_best_high": against.high,
                "prefilled": median(one.prefilled),
                "reused": one.reused,
                "max_load": one.max_load,
                "mispredicted": one.mispredicted,
            }
        )
    return rows


def _shown(found: Mapping[str, Any]) -> str:
    cells = [
        (
            row["engines"],
            row["policy"],
            f"{row['makespan_s']:.2f}",
            f"{row['times_best']:.2f}",
            f"{row['times_best_low']:.2f}-{row['times_best_high']:.2f}",
            f"{row['prefilled']:.0f}",
            str(row["reused"]),
            f"{row['max_load']:.2f}",
            f"{row['mispredicted']:.0f}",
        )
        for row in found["rows"]
    ]
    scaling = found["scaling"]
    spread = f"{scaling['gain_low']:.2f}-{scaling['gain_high']:.2f}"
    return f"{markdown([_COLUMNS, *cells])}\n\nfour engines against one: {scaling['gain']:.2f} times ({spread})"


if __name__ == "__main__":
    sys.exit(main())
