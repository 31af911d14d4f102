"""The `estimate` command: the most a search can cost, before it runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.arguments import USAGE, config_values, given, pairs, strategy_of
from orchestrator.config import Config, UsageError
from orchestrator.problems import read_problems
from search.estimate import Estimate
from search.strategies.base import Strategy

_SUMMED = ("calls", "expansions", "samples", "generated", "nodes", "verifications", "verifier_calls", "verified")


def estimate(
    problem: Annotated[list[str], typer.Argument(help="a text, or a .txt or .jsonl file; several words are joined")],
    strategy: Annotated[str, typer.Option(help="a strategy's name")] = "tot",
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="strategy option key=value, may be repeated")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of config keys")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="config key=value, may be repeated")] = None,
    model: Annotated[str | None, typer.Option(help="embedded, simulated, hub id, folder, or .gguf file")] = None,
    verifier: Annotated[str | None, typer.Option(help="self_evaluation, vote, confidence, checker, command")] = None,
    tokens: Annotated[int | None, typer.Option(help="budget: generated tokens")] = None,
    seconds: Annotated[float | None, typer.Option(help="budget: wall clock")] = None,
    expansions: Annotated[int | None, typer.Option(help="budget: engine orders")] = None,
    nodes: Annotated[int | None, typer.Option(help="budget: tree nodes")] = None,
    verifications: Annotated[int | None, typer.Option(help="budget: verifier calls")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False,
) -> None:
    """Print an upper bound of calls, tokens, nodes and KV bytes; the run never exceeds it. Starts no engine."""
    limits = {
        "tokens": tokens,
        "seconds": seconds,
        "expansions": expansions,
        "nodes": nodes,
        "verifications": verifications,
    }
    code = 0
    try:
        values = config_values(config, set_, {"model": model, "verifier": verifier})
        found = _bounds(
            " ".join(problem), strategy_of(strategy, pairs(option or [], "--option")), values, given(limits)
        )
        print(json.dumps(found) if as_json else _text(found))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        code = USAGE
    raise typer.Exit(code)


def _bounds(argument: str, strategy: Strategy, values: dict[str, Any], budget: dict[str, Any]) -> dict[str, Any]:
    """Sums over all problems; KV and depth of the largest one."""
    from orchestrator.orchestrator import Orchestrator

    problems = read_problems(argument, Config.create(**values).kind)
    with Orchestrator(**values) as orchestrator:
        bounds = [orchestrator.estimate(problem, strategy, budget=budget) for problem in problems]
    sums = {name: _total(bounds, name) for name in _SUMMED}
    largest = {name: _largest(bounds, name) for name in ("depth", "kv_tokens", "kv_bytes", "seconds")}
    return {"strategy": strategy.name, "problems": len(problems), **sums, **largest}


def _total(bounds: list[Estimate], name: str) -> int | None:
    values = [getattr(bound, name) for bound in bounds]
    return None if None in values else sum(values)


def _largest(bounds: list[Estimate], name: str) -> float | None:
    values = [getattr(bound, name) for bound in bounds]
    return None if None in values else max(values)


def _text(found: dict[str, Any]) -> str:
    def at_most(name: str) -> str:
        return "no bound" if found[name] is None else f"at most {found[name]:,}"

    generation = f"{at_most('generated')} tokens in {at_most('samples')} samples, {at_most('calls')} engine calls"
    size = "not known" if found["kv_bytes"] is None else f"at most {found['kv_bytes'] / 2**20:,.1f} MiB"
    return "\n".join(
        [
            f"{found['strategy']} on {found['problems']} problem(s):",
            f"  generation: {generation}",
            f"  verification: {at_most('verifications')} paths in {at_most('verifier_calls')} calls, "
            f"{at_most('verified')} question tokens",
            f"  tree: {at_most('nodes')} nodes, {at_most('depth')} deep",
            f"  KV of the largest tree: {at_most('kv_tokens')} tokens, {size} on each engine",
        ]
    )
