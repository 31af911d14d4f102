"""`python -m bench.shifted`: what reuse of a moved chunk costs in accuracy, where the hint comes before the problem.

For each problem the prompt with the first hint is held; the prompts with the other hints then reuse the chunk from the
problem on, which lies elsewhere behind another prefix. The distributions of the next tokens, along the greedy
continuation of the exact model, are compared with those of the exact computation.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from bench.environment import environment
from bench.workload import Tokens
from engine.admission import spans_of
from engine.asks.options import Asks
from engine.base import BranchRequest, BranchResult, StepRule
from engine.local import LocalEngine
from engine.row_kv import RowKV
from search.prompts import INSTRUCTION, SYSTEM

HINTS = (
    "Hint: write down what is given first.",
    "You are a careful accountant who checks every sum twice before going on.",
    "Hint: work backwards from what is asked for.",
    "You teach children: keep the numbers small and explain each of them in plain words.",
)
REPAIRS: tuple[tuple[int, float], ...] = ((0, 0.0), (8, 0.0), (8, 0.15), (8, 0.5), (8, 1.0))
"""(first tokens of the chunk, share of the most deviating ones) that are computed anew."""
DATA = Path(__file__).parents[1] / "tests" / "data" / "gsm8k_3.jsonl"


@dataclass(frozen=True, slots=True)
class Case:
    """Prompts of one problem: the held one, and one that reuses its chunk; what the exact model goes on with."""

    held: Tokens
    prompt: Tokens
    after: Tokens


def prompts(engine: LocalEngine, problem: str) -> list[Tokens]:
    """One prompt a hint, the hint before the problem."""
    found = []
    for hint in HINTS:
        user = {"role": "user", "content": f"{hint}\n\n{problem}\n\n{INSTRUCTION}"}
        found.append(tuple(engine.codec.encode(engine.codec.render([{"role": "system", "content": SYSTEM}, user]))))
    return found


def cases(exact: LocalEngine, problems: list[str], tokens: int) -> Iterator[Case]:
    for problem in problems:
        held, *others = prompts(exact, problem)
        for prompt in others:
            drawn = _expand(exact, prompt, tokens).branches[0].token_ids
            yield Case(held, prompt, (prompt[-1], *drawn[: tokens - 1]))


def distributions(engine: LocalEngine, case: Case) -> Tensor:
    """Log-probabilities [tokens, V] behind each of the case's last tokens, on what the engine holds of its prompt."""
    end = engine.tree.reach(case.prompt[:-1], approximate=True)
    row = RowKV(engine.shape, spans_of(end), len(case.after))
    return torch.stack([engine.forward([(row, [t], True)])[0].float().log_softmax(-1) for t in case.after])


def measure(
    options: argparse.Namespace, tell: Callable[[str], None], repairs: Sequence[tuple[int, float]] = REPAIRS
) -> list[dict[str, Any]]:
    """One row a repair."""
    exact = LocalEngine.load(options.model, dtype="float32", device="cpu", threads=options.threads)
    exact.codec.eos_ids = frozenset()
    lines = Path(options.data).read_text(encoding="utf-8").splitlines()
    problems = [json.loads(line)["question"] for line in lines[: options.problems]]
    found = list(cases(exact, problems, options.tokens))
    expected = [distributions(exact, case) for case in found]
    rows = []
    for first, ratio in repairs:
        tell(f"first {first}, ratio {ratio}")
        rows.append(_row(exact, found, expected, Asks(shifted=True, first=first, ratio=ratio, audit=0.0)))
    return rows


def audited(options: argparse.Namespace) -> dict[str, Any]:
    """What the audit of one engine finds when every reuse of the default repair is audited."""
    engine = LocalEngine.load(
        options.model, dtype="float32", device="cpu", threads=options.threads, asks=Asks(shifted=True, audit=1.0)
    )
    lines = Path(options.data).read_text(encoding="utf-8").splitlines()
    for line in lines[: options.problems]:
        for prompt in prompts(engine, json.loads(line)["question"]):
            _expand(engine, prompt, 1)
    return {key: value for key, value in engine.stats().items() if key.startswith("shifted_")}


def _row(exact: LocalEngine, found: list[Case], expected: list[Tensor], asks: Asks) -> dict[str, Any]:
    kl: list[float] = []
    first_kl: list[float] = []
    agrees: list[float] = []
    moved = computed = total = 0
    seconds = {"shifted": 0.0, "exact": 0.0}
    for case, p in zip(found, expected, strict=True):
        engine = LocalEngine(exact.model, exact.codec, "shifted", asks=asks)
        for name, each in (("exact", LocalEngine(exact.model, exact.codec, "exact")), ("shifted", engine)):
            _expand(each, case.held, 1)
            seconds[name] += _expand(each, case.prompt, 1).usage.seconds["prefill"]
        q = distributions(engine, case)
        kls = (p.exp() * (p - q)).sum(-1).clamp_min(0).tolist()
        kl += kls
        first_kl.append(kls[0])
        agrees += (p.argmax(-1) == q.argmax(-1)).float().tolist()
        stats = engine.stats()
        moved += stats["shifted_moved"]
        computed += stats["shifted_computed"]
        total += len(case.prompt) - 1
    return {
        "first": asks.first,
        "ratio": asks.ratio,
        "kl_mean": mean(kl),
        "kl_first_token": mean(first_kl),
        "kl_max": max(kl),
        "top1_agreement": mean(agrees),
        "positions": len(kl),
        "prompts": len(found),
        "prompt_tokens": total,
        "moved": moved,
        "computed": computed,
        "prefill_s": seconds["shifted"],
        "exact_prefill_s": seconds["exact"],
    }


def _expand(engine: LocalEngine, prompt: Tokens, new: int) -> BranchResult:
    result = engine.expand([BranchRequest("x", (prompt,), (0,), StepRule(max_tokens=new), 0.0)])[0]
    if result.error is not None:
        raise RuntimeError(result.error)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--data", default=str(DATA), help="JSON lines with a 'question' each")
    parser.add_argument("--problems", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=16, help="positions compared behind each prompt")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--audit", action="store_true", help="only audit every reuse of the default repair")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    if options.audit:
        print(json.dumps({"audit": audited(options), "config": {**environment(), **vars(options)}}))
        return
    rows = measure(options, lambda text: None if options.json else print(text, flush=True))
    for row in rows:
        print(
            f"first {row['first']} ratio {row['ratio']:.2f}: KL mean {row['kl_mean']:.4f} "
            f"(first token {row['kl_first_token']:.4f}, max {row['kl_max']:.3f})  top-1 {row['top1_agreement']:.3f}  "
            f"moved {row['moved']} and computed {row['computed']} of {row['prompt_tokens']} prompt tokens  "
            f"prefill {row['prefill_s']:.2f} s (exact {row['exact_prefill_s']:.2f} s)"
        )
    if options.json:
        print(json.dumps({"rows": rows, "config": {**environment(), **vars(options)}}))


if __name__ == "__main__":
    main()
