"""Adaptive branching MCTS, variant A (Inoue et al. 2025, "Wider or Deeper?", arXiv 2503.04412).

A node is a whole answer and its children are refinements of it, as in the paper, or a step that its children continue.

Selection: at each node Thompson sampling decides whether to generate a new child (GEN, wider) or to go on below one of
those there are (CONT, deeper), and then which. GEN's posterior comes from the scores of the node's own children, CONT's
from what grew below them, a child's from itself and all below it; each is a Beta with prior (a, b). Expansion: `k` new
children, one in the paper. Simulation: the verifier's score of each. Backup: N += 1 and W += score for the child and
every node above it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import ClassVar, Literal

from search.ceiling import Ceiling
from search.node import Node
from search.strategies.monte_carlo import MonteCarlo
from search.strategies.options import require_at_least, require_choice, require_number
from search.tree import SearchTree
from search.types import Boundary, Expansion, Sampling


@dataclass(frozen=True, kw_only=True)
class ABMCTS(MonteCarlo):
    """unit: "answer" refines whole answers of at most `max_tokens` tokens by a request behind them; "step" continues
    steps, and needs many simulations to reach an answer. prior_a, prior_b: Beta prior of every action, in pseudo-visits
    of score 1 and 0. No node is ever exhausted.
    """

    name: ClassVar[str] = "ab_mcts"
    choose: Literal["best", "vote"] = "best"
    simulations: int = 8
    k: int = 1
    unit: Literal["answer", "step"] = "answer"
    max_tokens: int = 256
    prior_a: float = 0.5
    prior_b: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number(self, 1e-3, 1e3, "prior_a", "prior_b")
        require_choice(self, "unit", ("answer", "step"))
        require_at_least(self, 1, "max_tokens")

    def select(self, tree: SearchTree) -> Node | None:
        """Draws depend on the seed, the problem and how much was asked for before, so a run can be repeated."""
        if not self._growable(tree.root):
            return None
        key = f"{tree.seed}\0{tree.problem.id}\0{len(tree.asked)}".encode()
        draw = random.Random(int.from_bytes(blake2b(key, digest_size=8).digest(), "big"))
        node = tree.root
        while True:
            if self._wider(node, draw):
                return node
            below = [child for child in tree.children(node) if self._growable(child)]
            if not below:
                return node
            node = max(below, key=lambda child: self._sample(draw, child.value_sum, child.visits))

    def order(self, tree: SearchTree, node: Node) -> Expansion:
        if self.unit == "step":
            return super().order(tree, node)
        sampling = replace(tree.sampling, max_tokens=self.max_tokens, boundary=Boundary.none())
        if node.depth > 0:
            return tree.expansion(node, self.k, sampling, mode="refine")
        return tree.expansion(node, self.k, sampling, hint=self.hint())

    def ceiling(self, sampling: Sampling) -> Ceiling:
        if self.unit == "step":
            return super().ceiling(sampling)
        return replace(super().ceiling(replace(sampling, max_tokens=self.max_tokens)), follow_ups=self.simulations)

    def _wider(self, node: Node, draw: random.Random) -> bool:
        """GEN, by the node's children alone, against CONT, by what grew below them."""
        own = (node.value or 0.0, 1) if node.value is not None else (0.0, 0)
        deeper = node.value_sum - own[0] * node.multiplicity - node.born_sum
        visits = node.visits - own[1] * node.multiplicity - node.born
        return self._sample(draw, node.born_sum, node.born) >= self._sample(draw, deeper, visits)

    def _sample(self, draw: random.Random, value_sum: float, visits: int) -> float:
        """One draw from Beta(a + W, b + N - W)."""
        return draw.betavariate(self.prior_a + value_sum, self.prior_b + visits - value_sum)

    def _growable(self, node: Node) -> bool:
        """Whether the path may go on: below a finished answer if answers are refined, below an open step if not."""
        ended = bool(node.depth) and self.unit == "answer"
        return node.complete == ended and not node.closed and node.status not in ("dead", "pruned")
