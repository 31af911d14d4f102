"""Whole trees of every strategy on one simulated problem, as text. `python -m tests.golden.traces` writes them anew.

Read the difference before committing it: a line that changed is a decision that changed.
"""

import asyncio
from pathlib import Path

from search.driver import TreeSearch
from search.simulated import SimulatedPool
from search.strategies import registry
from search.types import Problem
from search.verifiers.self_evaluation import SelfEvaluation
from search.world import World

FOLDER = Path(__file__).parent
WORLD = World(seed=7, depth=2, p_step=0.8, spread=0.5, auc=0.8)
PROBLEM = Problem("A golden problem", "golden", "number", str(WORLD.truth("golden")))
TRACES = {
    "ab_mcts": ("ab_mcts", {"simulations": 8}),
    "ab_mcts-step": ("ab_mcts", {"unit": "step", "simulations": 12, "max_depth": 3}),
    "beam": ("beam", {"n": 4, "m": 2}),
    "best_of_n": ("best_of_n", {"samples": 4, "wave": 2}),
    "dvts": ("dvts", {"n": 4, "m": 2}),
    "greedy": ("greedy", {}),
    "mcts": ("mcts", {"simulations": 8}),
    "mcts-merged": ("mcts", {"simulations": 8}),
    "mcts-puct": ("mcts", {"simulations": 8, "policy": "puct", "aggregate": "min", "choose": "best"}),
    "mcts-rollouts": ("mcts", {"simulations": 8, "rollouts": 1}),
    "mcts-widen": ("mcts", {"simulations": 12, "widen": 1.0, "k": 1}),
    "rebase": ("rebase", {"n": 5, "balance": 0.5}),
    "rebase-ets": ("rebase", {"n": 5, "ets": True, "balance": 0.5, "lambda_b": 2.0, "lambda_d": 0.5}),
    "self_consistency": ("self_consistency", {"samples": 6, "wave": 2}),
    "self_consistency-pruned": (
        "self_consistency",
        {"samples": 8, "wave": 4, "stop": "none", "prune": 0.5, "warmup": 4},
    ),
    "self_consistency-window": ("self_consistency", {"samples": 6, "stop": "window", "window": 2, "wave": 2}),
    "tot": ("tot", {}),
    "tot-dfs": ("tot", {"order": "dfs", "prune_below": 0.3, "solutions": 2}),
    "tot-merged": ("tot", {}),
    "tot-propose": ("tot", {"generate": "propose"}),
}


def trace(name: str) -> str:
    """One line a node in canonical order, then the answer and the cost. Siblings are merged where the name says so."""
    strategy, options = TRACES[name]
    pool = SimulatedPool(WORLD)
    chosen = registry.create(strategy, **options)
    search = TreeSearch(pool, chosen, SelfEvaluation(pool), seed=1, merge=name.endswith("-merged"))
    found = asyncio.run(search.run(PROBLEM))
    lines = [f"{strategy} {options}"]
    for node in found.tree.to_json()["nodes"]:
        score = "        " if node["score"] is None else f"{node['score']:.6f}"
        flags = f"N={node['visits']} x{node['multiplicity']}" + (" complete" if node["complete"] else "")
        text = " ".join(node["text"].split())
        reason = f" ({node['reason']})" if node["reason"] else ""
        lines.append(f"{node['id']:<12} {score} {node['status']:<8} {flags} | {text}{reason}")
    votes = {answer: round(weight, 6) for answer, weight in found.votes.items()}
    lines.append(
        f"answer {found.answer} at {found.node_id}, {found.stop_reason}, correct {found.correct}, votes {votes}"
    )
    lines.append(f"generated {found.cost.generated}, verified {found.cost.verified}, unused {dict(found.unused)}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for one in TRACES:
        (FOLDER / f"{one}.txt").write_text(trace(one), encoding="utf-8")
