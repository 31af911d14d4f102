"""`python -m bench.sharing`: what growing branches behind one prefix costs, with and without sharing its KV."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.conditions import CONDITIONS, Condition, Setup, UnavailableError, build
from bench.environment import environment
from bench.harness import measure
from bench.report import rows, table
from bench.workload import HINT_TOKENS, Point, Text

SAVED = Path(__file__).with_name("results") / "sharing.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """0: all done; 1: float32 outputs differ; 2: usage."""
    options = parse(arguments)
    from engine.models import ModelNotFoundError, resolve

    try:
        source = resolve(options.model)
    except ModelNotFoundError as error:
        print(f"bench.sharing: {error}", file=sys.stderr)
        return 2
    setup = Setup(source, options.dtype, options.threads, options.device, options.vllm_python, options.vllm_eager)
    try:
        result = run(setup, points(options), options.conditions, options.rounds)
    finally:
        setup.close()
    print(table(result["rows"]))
    for skipped in result["skipped"]:
        print(f"skipped {skipped['condition']}: {skipped['reason']}")
    print(", ".join(f"{key} {value}" for key, value in result["config"].items() if key != "conditions"))
    if options.save:
        SAVED.parent.mkdir(exist_ok=True)
        SAVED.write_text(json.dumps(result, indent=1) + "\n")
    if options.json:
        print(json.dumps(result))
    return int(options.dtype == "float32" and not all(row["outputs_equal"] for row in result["rows"]))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.sharing", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the single point 1024 / 8 / 32")
    parser.add_argument("--prefix", type=_numbers, default=(256, 1024, 4096), help="tokens of the shared prefix")
    parser.add_argument("--branches", type=_numbers, default=(2, 8, 32))
    parser.add_argument("--new-tokens", type=int, default=32, help="tokens drawn for each branch")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds; warm-up comes on top")
    parser.add_argument("--conditions", type=_conditions, default=tuple(CONDITIONS), help=", ".join(CONDITIONS))
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--vllm-python", type=Path, help="interpreter of an environment with vLLM")
    parser.add_argument("--vllm-eager", action="store_true", help="run vLLM without compiling the model")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--save", action="store_true", help=f"write {SAVED.parent.name}/{SAVED.name} beside this file")
    options = parser.parse_args(arguments)
    if min(options.rounds, options.threads, options.new_tokens, *options.prefix, *options.branches) < 1:
        parser.error("rounds, threads, new-tokens, prefix and branches must be at least 1")
    return options


def points(options: argparse.Namespace) -> list[Point]:
    if options.quick:
        return [Point(1024, 8, options.new_tokens)]
    return [Point(prefix, n, options.new_tokens) for prefix in options.prefix for n in options.branches]


def run(setup: Setup, grid: Sequence[Point], names: Sequence[str], rounds: int) -> dict[str, Any]:
    """The whole benchmark as the JSON object; conditions that cannot run are in "skipped"."""
    found: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    settings: dict[str, Any] = {}
    before = environment()
    text = Text(setup.codec)
    setup.longest = max(point.longest for point in grid)
    for point in grid:
        conditions = _ready(setup, point, [name for name in names if name not in skipped], skipped)
        settings.update({name: condition.settings for name, condition in conditions.items()})
        measured = measure(conditions, lambda at=point: text.job(at), rounds, _tell(point))
        found += rows(measured, point, setup.kv_bytes_per_token)
    config = {
        **before,
        "load_average_after": list(os.getloadavg()),
        "model": setup.source.name,
        "dtype": setup.dtype,
        "device": setup.device,
        "threads": setup.threads,
        "rounds": rounds,
        "hint_tokens": HINT_TOKENS,
        "conditions": settings,
    }
    reasons = [{"condition": name, "reason": reason} for name, reason in skipped.items()]
    return {"rows": found, "skipped": reasons, "config": config}


def _ready(setup: Setup, point: Point, names: Sequence[str], skipped: dict[str, str]) -> dict[str, Condition]:
    conditions: dict[str, Condition] = {}
    for name in names:
        try:
            conditions[name] = build(name, setup, point)
        except UnavailableError as error:
            skipped[name] = str(error)
    return conditions


def _tell(point: Point) -> Callable[[str], None]:
    """Progress goes to standard error, between measurements."""
    return lambda what: print(f"{point.prefix}/{point.branches}: {what}", file=sys.stderr, flush=True)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _conditions(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in CONDITIONS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown condition {unknown[0]!r}; choices: {', '.join(CONDITIONS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
