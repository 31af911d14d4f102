"""`python -m bench.overhead`: what the controller itself costs, engines and verifiers left out.

Nodes: CPU milliseconds of strategy, driver and tree for each node of a search that grows to `--nodes`, on a simulated
pool whose own time (that of the same calls made again) is taken off. Waiting: wall-clock seconds of a search on an
engine that takes 50 ms a call, beside the least that its orders in flight allow.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.environment import environment
from engine.base import BranchRequest, BranchResult
from engine.simulated import SimulatedEngine
from search.budget import Budget
from search.driver import TreeSearch
from search.ports import Keep
from search.simulated import SimulatedPool
from search.strategies import registry
from search.types import Expansion, Outcome, Problem, Sampling, Score, ScoreRequest
from search.verifiers.self_evaluation import SelfEvaluation
from search.world import World

SAVED = Path(__file__).parent / "results" / "overhead.json"
MOST_MS = 1.0
PATH = 1000
"""Steps of greedy's one path: what a step needs of its path takes time in the path's length."""
CALL_S = 0.05
STEPS, WHOLE = World(depth=10_000, spread=0.0), World(depth=2)
"""Worlds where no path ends by itself, and where a whole sample is three lines."""

Options = Mapping[str, Any]


def cases(nodes: int) -> dict[str, tuple[str, World, Options]]:
    """Every strategy, and variants that scan more, each large enough for so many nodes."""
    half = nodes // 2
    whole = {"samples": nodes, "wave": 16}
    return {
        "greedy": ("greedy", STEPS, {"max_depth": PATH}),
        "self_consistency": ("self_consistency", WHOLE, {**whole, "samples": 2 * nodes, "stop_at": 1.0}),
        "self_consistency window": (
            "self_consistency",
            WHOLE,
            {**whole, "samples": 2 * nodes, "stop": "window", "window": nodes},
        ),
        "self_consistency pruned": ("self_consistency", WHOLE, {**whole, "stop": "none", "prune": 0.1, "warmup": 16}),
        "best_of_n": ("best_of_n", WHOLE, whole),
        "beam": ("beam", STEPS, {"n": 256, "m": 4, "max_depth": nodes // 256 + 1}),
        "dvts": ("dvts", STEPS, {"n": 256, "m": 4, "max_depth": nodes // 256 + 1}),
        "rebase": ("rebase", STEPS, {"n": 250, "max_depth": nodes // 250 + 1}),
        "rebase ets": ("rebase", STEPS, {"n": 32, "ets": True, "max_depth": nodes // 32 + 1}),
        "tot": ("tot", STEPS, {"b": 64, "k": 4, "max_depth": nodes // 192 + 2}),
        "tot dfs": ("tot", STEPS, {"order": "dfs", "k": 4, "max_depth": 7, "solutions": nodes}),
        "mcts": ("mcts", STEPS, {"simulations": half, "leaves": 8, "max_depth": 30}),
        "mcts puct": ("mcts", STEPS, {"simulations": half, "leaves": 8, "policy": "puct", "max_depth": 30}),
        "mcts widening": ("mcts", STEPS, {"simulations": half, "leaves": 8, "widen": 1.0, "max_depth": 30}),
        "ab_mcts": ("ab_mcts", WHOLE, {"simulations": nodes, "k": 2, "max_depth": 30}),
        "ab_mcts by steps": ("ab_mcts", STEPS, {"simulations": half, "k": 2, "unit": "step", "max_depth": 30}),
    }


@dataclass
class RepeatedPool:
    """A simulated pool that remembers its calls: a clock around each would cost as much as a call."""

    inner: SimulatedPool
    waves: list[Sequence[Expansion]] = field(default_factory=list)
    asked: list[Sequence[ScoreRequest]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def expand(self, wave: Sequence[Expansion], keep: Keep | None = None) -> list[Outcome]:
        self.waves.append(wave)
        return await self.inner.expand(wave, keep)

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        self.asked.append(requests)
        return await self.inner.score(requests)

    async def again(self) -> float:
        """CPU seconds of the same calls."""
        began = time.process_time()
        for wave in self.waves:
            await self.inner.expand(wave)
        for requests in self.asked:
            await self.inner.score(requests)
        return time.process_time() - began


def per_node(name: str, world: World, options: Options, nodes: int) -> dict[str, Any]:
    """One search to `nodes` nodes at most."""
    pool = RepeatedPool(SimulatedPool(world))
    strategy = registry.create(name, **options)
    judge = SelfEvaluation(pool) if strategy.judges else None
    search = TreeSearch(pool, strategy, judge, sampling=Sampling(max_tokens=64), budget=Budget(nodes=nodes), seed=3)
    began = time.process_time()
    found = asyncio.run(search.run(Problem("A large problem", "large", "number")))
    spent = time.process_time() - began
    spent -= asyncio.run(pool.again())
    return {"nodes": len(found.tree) - 1, "ms_per_node": 1e3 * spent / (len(found.tree) - 1)}


class PunctualEngine(SimulatedEngine):
    """A call takes `CALL_S`, what it computes for that included. cpu_s: of its calls so far."""

    cpu_s = 0.0

    def expand(self, requests: Sequence[BranchRequest]) -> list[BranchResult]:
        began, cpu = time.perf_counter(), time.thread_time()
        results = super().expand(requests)
        self.cpu_s += time.thread_time() - cpu
        time.sleep(max(CALL_S - (time.perf_counter() - began), 0.0))
        return results


@dataclass(frozen=True)
class Waiting:
    """A search with several orders in flight. calls: the least number of engine calls one after the other."""

    name: str
    options: Options
    calls: int
    most: float


WAITING = (
    Waiting("mcts", {"simulations": 63, "k": 2, "leaves": 8, "max_depth": 30}, 3 + 56 // 8, 1.25),
    Waiting("self_consistency", {"samples": 16, "wave": 16, "stop": "none"}, 1, 1.1),
)
"""MCTS can send one order, then two, then four (`k` is 2), and eight at once from then on."""


def waited(case: Waiting, rounds: int) -> dict[str, Any]:
    """Of several rounds on the real stack in this process: seconds from asking to the answer, beside the ideal."""
    from orchestrator import Orchestrator

    made: list[PunctualEngine] = []

    def engine() -> PunctualEngine:
        made.append(PunctualEngine(depth=40))
        return made[-1]

    walls, cpus = [], []
    with Orchestrator(engine=engine, runtime="inline", engines=1, verifier="confidence") as own:
        own.solve("A first problem", case.name, **case.options)
        for i in range(rounds):
            began, cpu = time.perf_counter(), time.process_time() - sum(one.cpu_s for one in made)
            found = own.solve(f"Problem {i}", case.name, **case.options)
            walls.append(time.perf_counter() - began)
            cpus.append(time.process_time() - sum(one.cpu_s for one in made) - cpu)
            if len(found.tree.told) != case.options.get("simulations", case.options.get("samples")):
                raise RuntimeError(f"{case.name} ended early: {found.stop_reason}")
    ideal = case.calls * CALL_S
    return {
        "ideal_s": ideal,
        "wall_s": walls,
        "best": min(walls) / ideal,
        "median": median(walls) / ideal,
        "cpu_s": median(cpus),
        "quiet": 1 + median(cpus) / ideal,
        "most": case.most,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """0: every bound holds; 1: one does not."""
    options = parse(arguments)
    before = environment()
    rows = {}
    for label, (name, world, settings) in cases(options.nodes).items():
        if options.only is None or label in options.only:
            rows[label] = per_node(name, world, settings, options.nodes)
            print(f"{label:<24} {rows[label]['nodes']:>6} nodes {rows[label]['ms_per_node']:8.3f} ms", flush=True)
    waits = {}
    for case in WAITING if options.only is None else ():
        waits[case.name] = found = waited(case, options.rounds)
        print(
            f"{case.name:<24} ideal {found['ideal_s']:.2f} s: best x{found['best']:.3f}, "
            f"median x{found['median']:.3f}, "
            f"with its own CPU time alone x{found['quiet']:.3f}, at most x{case.most}"
        )
    result = {"nodes": rows, "waiting": waits, "environment": before}
    if options.save:
        SAVED.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if options.json:
        print(json.dumps(result))
    slow = [label for label, row in rows.items() if row["ms_per_node"] >= MOST_MS]
    late = [name for name, found in waits.items() if min(found["best"], found["quiet"]) > found["most"]]
    for label in (*slow, *late):
        print(f"bench.overhead: {label} is above its bound", file=sys.stderr)
    return int(bool(slow or late))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1,000 nodes, 5 rounds")
    parser.add_argument("--nodes", type=int, help="default 5000, quick 1000")
    parser.add_argument("--rounds", type=int, help="of each search that waits; default 20, quick 5")
    parser.add_argument("--only", action="append", help="only this search, may be repeated")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--save", action="store_true", help=f"write {SAVED.parent.name}/{SAVED.name}")
    options = parser.parse_args(arguments)
    options.nodes = options.nodes or (1000 if options.quick else 5000)
    options.rounds = options.rounds or (5 if options.quick else 20)
    return options


if __name__ == "__main__":
    sys.exit(main())
