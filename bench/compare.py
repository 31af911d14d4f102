"""`python -m bench.compare`: strategies at equal budgets of generated tokens, whatever comes out.

qwen: Qwen2.5-Coder-0.5B-Instruct on generated arithmetic that it gets about half right by greedy decoding. embedded:
the default model on GSM8K, of which it can do next to nothing. A run that was ended goes on from its records.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from bench.claims.problems import DATA
from bench.environment import environment
from orchestrator.compare_command import chosen_strategies, compared
from orchestrator.comparison_file import ComparisonFile
from orchestrator.comparison_table import table
from orchestrator.task_problems import task_config
from search.tasks.base import Task
from search.tasks.gsm8k import GSM8K
from search.tasks.reasoning_gym import ReasoningGym
from search.types import Problem

RESULTS = Path(__file__).parent / "results"
GGUF = Path("models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf")
SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
STRATEGIES = "greedy,self_consistency,best_of_n,beam,tot,mcts"
OPTIONS = (
    "self_consistency.samples=8",
    "self_consistency.max_tokens=128",
    "self_consistency.stop=none",
    "best_of_n.samples=8",
    "best_of_n.max_tokens=128",
    "beam.max_depth=6",
    "tot.max_depth=6",
)
"""Sizes that let each search spend about its budget; samples of a wave share what is left, so two waves of four."""


_NO_TIMEOUT_S = 1e6
"""A call on a busy machine may take long, and an engine in this process cannot be killed, only loaded once more."""


@dataclass(frozen=True)
class Arithmetic(ReasoningGym):
    """Chain sums of four digits, and operations on two numbers of up to two digits, in turn."""

    parts: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: {
            "chain_sum": {"min_terms": 4, "max_terms": 4, "max_digits": 1},
            "basic_arithmetic": {"min_terms": 2, "max_terms": 2, "max_digits": 2},
        }
    )

    def rows(self, count: int, seed: int) -> list[Problem]:
        """`count` different problems, half of each part."""
        each = [
            _different(ReasoningGym(dataset=name).generate(count, seed, **config), -(-count // len(self.parts)))
            for name, config in self.parts.items()
        ]
        return [problem for group in zip(*each, strict=True) for problem in group][:count]


def _different(problems: Sequence[Problem], count: int) -> list[Problem]:
    return list({problem.text: problem for problem in problems}.values())[:count]


def gsm8k(count: int) -> list[Problem]:
    """The first rows of the test set."""
    lines = (DATA / "gsm8k.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    return GSM8K().problems({**row, "answer": row["final"]} for row in map(json.loads, lines))


def main(arguments: Sequence[str] | None = None) -> int:
    """0: done, or skipped for want of the model; 2: the file is another one, or an option is wrong."""
    options = parse(arguments)
    model = options.model
    if model == "qwen":
        if not options.gguf.is_file():
            print(f"bench.compare: skipped, no file {str(options.gguf)!r} (--gguf; docs/benchmarks.md says where from)")
            return 0
        if (found := digest(options.gguf)) != SHA256:
            print(f"bench.compare: {str(options.gguf)!r} has sha256 {found}, not {SHA256}", file=sys.stderr)
            return 2
        model = str(options.gguf.resolve())
    task, problems = _problems(options)
    values = {
        **task_config(task),
        "model": model,
        "runtime": "inline",
        "engines": 1,
        "dtype": options.dtype,
        "concurrency": options.concurrency,
        "call_timeout_s": _NO_TIMEOUT_S,
    }
    names = ("greedy", *options.strategies.split(","))
    own = [option for option in OPTIONS if option.partition(".")[0] in names]
    strategies = chosen_strategies(options.strategies, "greedy", [*own, *options.option])
    settings = {
        "model": options.model,
        "sha256": SHA256 if options.model == "qwen" else None,
        "dtype": options.dtype,
        "problems": [problem.id for problem in problems],
        "tokens": options.tokens,
        "seed": options.seed,
        "strategies": strategies,
    }
    before = environment()
    file = ComparisonFile(options.records, settings)
    comparison = compared(problems, strategies, values, "greedy", options.tokens, options.seed, file, quiet=False)
    print(table(comparison))
    found_rows = [line.to_json() for line in comparison.lines()]
    result = json.dumps({"settings": settings, "environment": before, "strategies": found_rows}, allow_nan=False)
    if options.save:
        RESULTS.mkdir(exist_ok=True)
        saved = RESULTS / f"compare-{options.model}.json"
        saved.write_text(json.dumps(json.loads(result), indent=1) + "\n", encoding="utf-8")
    if options.json:
        print(result)
    return 0


def _problems(options: argparse.Namespace) -> tuple[Task, list[Problem]]:
    if options.model == "qwen":
        task = Arithmetic()
        return task, task.rows(options.problems, options.seed)
    return GSM8K(), gsm8k(options.problems)


def digest(path: Path) -> str:
    """sha256 of a file."""
    found = sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("--model", choices=("qwen", "embedded"), default="qwen")
    parser.add_argument("--gguf", type=Path, default=GGUF, help=f"the file of qwen; default {GGUF}")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--problems", type=int, help="default 60, embedded 20")
    parser.add_argument("--tokens", type=int, default=512, help="budget of a problem and strategy")
    parser.add_argument("--seed", type=int, default=7, help="of the generated problems and of the sampling")
    parser.add_argument("--strategies", default=STRATEGIES, help="names, separated by commas")
    parser.add_argument("--option", "-o", action="append", default=[], help="strategy.key=value, may be repeated")
    parser.add_argument("--concurrency", type=int, default=24, help="problems searched at once")
    parser.add_argument("--records", type=Path, help="file of records; default bench/results/compare-MODEL.jsonl")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--save", action="store_true", help="write bench/results/compare-MODEL.json")
    options = parser.parse_args(arguments)
    options.problems = options.problems or (60 if options.model == "qwen" else 20)
    options.records = options.records or RESULTS / f"compare-{options.model}.jsonl"
    return options


if __name__ == "__main__":
    sys.exit(main())
