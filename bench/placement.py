"""Placement policies on real Ray, four engine actors: `python -m bench.placement [--quick] [--json] [--save]`.

Every policy solves the same problems with the same seeds; all give the same trees, which is checked. `many`: more trees
than engines, `few`: two wide trees at a time, both on simulated engines that sleep for as long as they say. `tiny`: the
problems of `many` on a tiny random Llama. `scaling`: problems on one simulated engine and on four.
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
_COLUMNS = ("part", "policy", "makespan s", "x best", "spread", "prefilled", "reused", "max load", "mispredicted")
_ENGINES = 4
_SPEEDS = {"step_s": 0.004, "prefill_rate": 4000.0, "per_call_s": 0.004, "depth": 8, "realtime": True}
_SIMULATED = {"model": "simulated", "simulated": _SPEEDS, "max_step_tokens": 64}


@dataclass(frozen=True, slots=True)
class Work:
    """problems, so many at once, as a beam of `width` branches with `width` children each."""

    problems: int
    at_once: int
    width: int = 4


_WORK = {"many": Work(24, 16), "few": Work(6, 2, 8), "tiny": Work(24, 16), "scaling": Work(64, 32)}


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
    parser.add_argument("--parts", default=",".join(_WORK))
    parser.add_argument("--policies", default=",".join(registry.names()))
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    parser.add_argument("--save", action="store_true", help=f"write {_RESULTS.name}")
    args = parser.parse_args(argv)
    policies = [registry.check(name) for name in args.policies.split(",")]
    parts = args.parts.split(",")
    if unknown := [part for part in parts if part not in _WORK]:
        parser.error(f"{unknown[0]!r} is not one of {', '.join(_WORK)}")
    found: dict[str, Any] = {}
    rounds = args.rounds or (1 if args.quick else 3)
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        with tempfile.TemporaryDirectory() as folder:
            for part in parts:
                found[part] = _measure(part, policies, rounds, args.quick, Path(folder))
                if args.save:
                    _save(part, found[part])
    finally:
        ray.shutdown()
    print(json.dumps(found) if args.json else _shown(found))
    return 0


def _save(part: str, found: Mapping[str, Any]) -> None:
    """Parts measured before stay."""
    before = json.loads(_RESULTS.read_text())["parts"] if _RESULTS.exists() else {}
    saved = {"parts": {**before, part: {"environment": environment(), **found}}}
    _RESULTS.write_text(json.dumps(saved, indent=1) + "\n")


def _measure(part: str, policies: Sequence[str], rounds: int, quick: bool, folder: Path) -> dict[str, Any]:
    work = _WORK[part]
    options = _tiny(folder) if part == "tiny" else _SIMULATED
    questions = _questions(work.problems // 4 if quick else work.problems)
    if part == "scaling":
        return _scaling(work, options, questions, rounds)
    series = {policy: Series() for policy in policies}
    for number in range(rounds):
        for policy in _turned(policies, number):
            _round(series[policy], work, {**options, "placement": policy, "engines": _ENGINES}, questions)
    _require_equal(series)
    return {"problems": len(questions), "rounds": rounds, "rows": _rows(series)}


def _scaling(work: Work, options: Mapping[str, Any], questions: Sequence[str], rounds: int) -> dict[str, Any]:
    one, four = Series(), Series()
    for _ in range(rounds):
        _round(one, work, {**options, "engines": 1}, questions)
        _round(four, work, {**options, "engines": _ENGINES}, questions)
    gain = ratio(one.seconds, four.seconds)
    return {
        "problems": len(questions),
        "seconds_one": one.seconds,
        "seconds_four": four.seconds,
        "gain": gain.median,
        "gain_low": gain.low,
        "gain_high": gain.high,
    }


def _questions(count: int) -> list[str]:
    return [f"What is {17 * i} + {i}? " + "Think about it. " * 8 for i in range(count)]


def _tiny(folder: Path) -> dict[str, Any]:
    model = str(save_tiny_llama(folder / "llama"))
    return {"model": model, "dtype": "float32", "device": "cpu", "max_step_tokens": 16, "step_tokens": 12}


def _turned(policies: Sequence[str], number: int) -> list[str]:
    """Each round begins with another policy."""
    at = number % len(policies)
    return [*policies[at:], *policies[:at]]


def _round(series: Series, work: Work, options: Mapping[str, Any], questions: Sequence[str]) -> None:
    with Orchestrator(gpus_per_engine=0, threads=1, concurrency=work.at_once, **options) as orchestrator:
        orchestrator.start()
        began = time.perf_counter()
        results = orchestrator.solve_many(questions, "tot", seed=1, b=work.width, k=work.width, max_depth=8)
        series.seconds.append(time.perf_counter() - began)
    costs = [result.cost for result in results]
    series.prefilled.append(sum(cost.prefilled for cost in costs))
    series.reused = sum(sum(cost.reused.values()) for cost in costs)
    series.mispredicted = sum(cost.mispredicted for cost in costs)
    generated = {f"engine-{i}": 0 for i in range(int(options["engines"]))}
    for result in results:
        for name, row in result.engines.items():
            generated[name] += row["generated"]
    series.max_load = max(generated.values()) / (sum(generated.values()) / len(generated))
    series.trees = tuple(_facts(result) for result in results)


def _facts(result: SolveResult) -> object:
    nodes = [{key: value for key, value in node.items() if key != "engine"} for node in result.tree.to_json()["nodes"]]
    return result.answer, result.stop_reason, json.dumps(nodes, sort_keys=True)


def _require_equal(series: Mapping[str, Series]) -> None:
    first, *others = series.values()
    for name, other in zip(list(series)[1:], others, strict=True):
        if other.trees != first.trees:
            raise RuntimeError(f"policy {name!r} gave other trees than {next(iter(series))!r}")


def _rows(series: Mapping[str, Series]) -> list[dict[str, Any]]:
    best = min(series.values(), key=lambda one: median(one.seconds))
    rows = []
    for policy, one in series.items():
        against = ratio(one.seconds, best.seconds)
        rows.append(
            {
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
            part,
            row["policy"],
            f"{row['makespan_s']:.2f}",
            f"{row['times_best']:.2f}",
            f"{row['times_best_low']:.2f}-{row['times_best_high']:.2f}",
            f"{row['prefilled']:.0f}",
            str(row["reused"]),
            f"{row['max_load']:.2f}",
            f"{row['mispredicted']:.0f}",
        )
        for part, one in found.items()
        for row in one.get("rows", ())
    ]
    shown = markdown([_COLUMNS, *cells]) if cells else ""
    if scaling := found.get("scaling"):
        spread = f"{scaling['gain_low']:.2f}-{scaling['gain_high']:.2f}"
        shown += f"\n\nfour engines against one: {scaling['gain']:.2f} times ({spread})"
    return shown


if __name__ == "__main__":
    sys.exit(main())
