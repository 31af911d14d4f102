"""Monte Carlo tree search: UCT (Kocsis & Szepesvari 2006) or PUCT (Rosin 2011; Silver et al. 2017).

Selection: from the root down, one level at a time, to the child with the highest Q + U. uct: U = c sqrt(2 ln N_p / N);
puct: U = c P sqrt(N_p) / (1 + N), P the prior among siblings. N counts visits and what is in flight (WU-UCT, Liu et
al. 2020). Expansion: `k` sampled steps of the reached leaf, and `k` more whenever a node has fewer than
widen N^alpha children (progressive widening, Coulom 2007; Chaslot et al. 2008). Simulation: the verifier's score of a
new child; with `rollouts`, whole continuations of a leaf before it is expanded. Backup: N += 1 and W += score for the
child and every node above it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from search.ceiling import Ceiling
from search.node import Node
from search.strategies.monte_carlo import MonteCarlo
from search.strategies.options import require_at_least, require_choice, require_number
from search.tree import SearchTree
from search.types import Boundary, Expansion, Sampling


@dataclass(frozen=True, kw_only=True)
class MCTS(MonteCarlo):
    """c: exploration. policy: "uct" | "puct". prior, of puct: softmax of the "score", of the step's mean token
    "logprob", or "uniform". widen: 0 expands each node once. rollouts: whole continuations of each leaf below the root,
    of at most `rollout_tokens` tokens; an order of rollouts is one of the `simulations`.

    Without widening each node is expanded once. Rollouts that end are answers too.
    """

    name: ClassVar[str] = "mcts"
    c: float = 1.0
    policy: Literal["uct", "puct"] = "uct"
    prior: Literal["score", "logprob", "uniform"] = "score"
    widen: float = 0.0
    alpha: float = 0.5
    rollouts: int = 0
    rollout_tokens: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number(self, 0.0, 1e6, "c", "widen")
        require_number(self, 0.0, 1.0, "alpha")
        require_at_least(self, 0, "rollouts")
        require_at_least(self, 1, "rollout_tokens")
        require_choice(self, "policy", ("uct", "puct"))
        require_choice(self, "prior", ("score", "logprob", "uniform"))

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"logprobs"} if self.policy == "puct" and self.prior == "logprob" else ())

    def ask(self, tree: SearchTree, capacity: int) -> list[Expansion]:
        """With widening, a tree where every path has ended is widened at its root."""
        orders = super().ask(tree, capacity)
        if orders or not self.widen or tree.in_flight or len(tree.asked) >= self.simulations:
            return orders
        tree.reopen(tree.root)
        return super().ask(tree, capacity)

    def select(self, tree: SearchTree) -> Node | None:
        """Descend to a leaf that can be expanded now; None if there is none (all in flight, ended or too deep)."""
        node = tree.root
        while not node.expandable:
            children = tree.children(node)
            open_children = [child for child in children if child.open_leaves]
            if not open_children:
                return None
            bonus = self._bonus(node, children)
            node = max(open_children, key=lambda child: (child.mean_value + bonus[child.id], -child.index))
        return node

    def order(self, tree: SearchTree, node: Node) -> Expansion:
        if node.depth and self.rollouts and not tree.samples_asked(node):
            sampling = replace(tree.sampling, max_tokens=self.rollout_tokens, boundary=Boundary.none())
            return tree.expansion(node, self.rollouts, sampling, mode="rollout")
        return super().order(tree, node)

    def backup(self, tree: SearchTree, parent: Node, grown: list[Node]) -> None:
        super().backup(tree, parent, grown)
        if any(child.rollout for child in grown):
            tree.reopen(parent)
        for node in tree.path(parent) if self.widen else ():
            steps = tree.samples_asked(node) - (self.rollouts if node.depth else 0)
            if node.status == "expanded" and steps < self.widen * node.visits**self.alpha:
                tree.reopen(node)

    def ceiling(self, sampling: Sampling) -> Ceiling:
        most = super().ceiling(sampling)
        samples = self.simulations * max(self.k, self.rollouts)
        tokens = self.simulations * max(self.k * sampling.max_tokens, self.rollouts * self.rollout_tokens)
        return replace(most, samples=samples, tokens=tokens)

    def _bonus(self, parent: Node, children: Sequence[Node]) -> dict[str, float]:
        above = max(parent.visits + parent.in_flight, 1)
        visits = {child.id: child.visits + child.in_flight for child in children}
        if self.policy == "uct":
            return {id: self.c * math.sqrt(2 * math.log(above) / max(n, 1)) for id, n in visits.items()}
        prior = self._prior(children)
        return {id: self.c * prior[id] * math.sqrt(above) / (1 + n) for id, n in visits.items()}

    def _prior(self, children: Sequence[Node]) -> dict[str, float]:
        """P of each child among its siblings; rollouts are none."""
        logits = {child.id: self._logit(child) for child in children if not child.rollout}
        most = max(logits.values(), default=0.0)
        weights = {id: math.exp(logit - most) for id, logit in logits.items()}
        return {child.id: weights.get(child.id, 0.0) / max(sum(weights.values()), 1.0) for child in children}

    def _logit(self, child: Node) -> float:
        thought = child.thought
        if self.prior == "logprob":
            return (thought.logprob or 0.0) / max(thought.generated, 1)
        return child.score or 0.0 if self.prior == "score" else 0.0
