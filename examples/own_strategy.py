"""A strategy of your own, with parallel engines, KV reuse, a budget and events: `python examples/own_strategy.py`."""

from dataclasses import dataclass
from typing import ClassVar

from orchestrator import Orchestrator
from search.strategies.base import TreeStrategy
from search.strategies.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class EpsilonBest(TreeStrategy):
    """Grow the best open nodes, and every n-th time the one that was passed over for the longest."""

    name: ClassVar[str] = "epsilon_best"
    k: int = 2
    every: int = 4
    expansions: int = 12

    def ask(self, tree, capacity):
        orders = []
        while tree.in_flight < min(capacity, 3) and len(tree.asked) < self.expansions:
            waiting = [node for node in tree.nodes() if node.expandable]
            if not waiting:
                break
            passed_over = len(tree.asked) % self.every == self.every - 1
            node = waiting[0] if passed_over else max(waiting, key=lambda n: n.rank)
            orders.append(tree.expansion(node, self.k))
        return orders


if __name__ == "__main__":
    with Orchestrator(model="simulated", engines=2, runtime="inline") as orchestrator:
        for event in orchestrator.stream("What is 3 + 4 * 2?", "epsilon_best", every=3, budget={"tokens": 2000}):
            last = event
        used = f"{len(last.engines)} engines, {last.cost.generated} tokens"
        print(f"answer {last.answer}, {len(last.tree)} nodes on {used}")
