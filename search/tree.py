"""The search tree: nodes on a `networkx.DiGraph`, ids derived from the path, token ids stored once per node."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import networkx as nx

from search.node import Node, Status, canonical, node_json
from search.ports import Context
from search.steps import has_think_tag, spoken, states_final
from search.types import ENDED, Expansion, Mode, Outcome, Problem, Sample, Sampling, Thought, Verdict

ROOT = "r"
PRUNED = "its confidence fell below the floor"
_EXACT = 2**32
"""Values are multiples of 1 / _EXACT, so that sums of up to a million do not depend on the order of arrival."""


class SearchTree:
    """All that is known of one problem's search; a strategy keeps its state here.

    prompts: hint -> prompt token ids ("" is the plain prompt). seed keys the random streams.
    is_final: whether a step's text states the final answer, so that the path is complete.
    """

    def __init__(
        self,
        problem: Problem,
        prompts: Mapping[str, tuple[int, ...]],
        sampling: Sampling,
        seed: int = 0,
        is_final: Callable[[str], bool] = states_final,
    ) -> None:
        self.problem = problem
        self.prompts = dict(prompts)
        self.sampling = sampling
        self.seed = seed
        self.is_final = is_final
        self.asked: dict[str, Expansion] = {}
        self.told: set[str] = set()
        self.cancelled: set[str] = set()
        self.graph: nx.DiGraph[str] = nx.DiGraph()
        self._nodes: dict[str, Node] = {}
        self._children: dict[str, list[Node]] = {}
        self.pruned: list[Node] = []
        self.answers: dict[str, str | None] = {}
        self._levels: list[list[Node]] = []
        self._reopened: set[str] = set()
        self._samples_asked: dict[str, int] = {}
        self._complete: list[Node] = []
        self._pending: Counter[str] = Counter()
        self._failures: dict[str, dict[int, str]] = {}
        self._insert(Node(ROOT, None, 0, 0, Thought("")))

    # -- reading ---------------------------------------------------------------------------------------------------
    @property
    def root(self) -> Node:
        return self.node(ROOT)

    @property
    def in_flight(self) -> int:
        """Expansions asked for and not told yet."""
        return self.root.in_flight

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def height(self) -> int:
        """Depth of the deepest node."""
        return len(self._levels) - 1

    def level(self, depth: int) -> list[Node]:
        """The nodes of one depth, in canonical order."""
        return sorted(self._levels[depth], key=canonical) if depth <= self.height else []

    def samples_asked(self, node: Node) -> int:
        """Samples ordered below this node so far."""
        return self._samples_asked.get(node.id, 0)

    def node(self, node_id: str) -> Node:
        return self._nodes[node_id]

    def nodes(self) -> Iterator[Node]:
        """All nodes in order of insertion."""
        return iter(self._nodes.values())

    def children(self, node: Node) -> list[Node]:
        """Children by sample index, in whatever order they came."""
        return list(self._children[node.id])

    def has_children(self, node: Node) -> bool:
        return bool(self._children[node.id])

    def parent(self, node: Node) -> Node | None:
        return None if node.parent is None else self.node(node.parent)

    def path(self, node: Node) -> list[Node]:
        """From the root to `node`, both included."""
        path = [node]
        while node.parent is not None:
            node = self._nodes[node.parent]
            path.append(node)
        path.reverse()
        return path

    def steps(self, node: Node) -> tuple[str, ...]:
        return tuple(n.thought.text for n in self.path(node)[1:])

    def text(self, node: Node) -> str:
        return "".join(self.steps(node))

    def context(self, node: Node) -> Context:
        """Token segments from the prompt (with the node's hint) to `node`."""
        return (self.prompts[node.hint], *(n.thought.token_ids for n in self.path(node)[1:]))

    def complete(self) -> list[Node]:
        """Finished solutions in canonical order (by depth, then path)."""
        return sorted(self._complete, key=canonical)

    def finished(self) -> Iterator[Node]:
        """Finished solutions in order of arrival."""
        return iter(self._complete)

    def completes(self, parent: Node, sample: Sample) -> bool:
        """Whether `sample` finishes the path: the model ended it, or a whole step states the final answer."""
        if sample.finish in ENDED:
            return True
        if sample.finish != "step" or not (has_think_tag(sample.text) or self.is_final(sample.text)):
            return False
        return self.is_final(spoken(self.text(parent), sample.text))

    # -- asking and telling ----------------------------------------------------------------------------------------
    def expansion(
        self,
        node: Node,
        n: int,
        sampling: Sampling | None = None,
        hint: str | None = None,
        mode: Mode = "sample",
    ) -> Expansion:
        """Order `n` more children of `node`; the order counts as in flight on the whole path until told.

        hint: for the root, which prompt variant the new children continue.
        """
        if n < 1:
            raise ValueError(f"an expansion needs at least 1 sample, got {n}")
        hint = node.hint if hint is None else hint
        if hint not in self.prompts:
            raise ValueError(f"hint {hint!r} has no prompt; hints given: {sorted(self.prompts)}")
        first = self._samples_asked.get(node.id, 0)
        self._samples_asked[node.id] = first + n
        order = Expansion(
            id=f"{self.problem.id}/{node.id}/{first}",
            problem_id=self.problem.id,
            node_id=node.id,
            context=(self.prompts[hint], *self.context(node)[1:]),
            n=n,
            sampling=sampling or self.sampling,
            seed=self.seed,
            first_sample=first,
            hint=hint,
            mode=mode,
        )
        self.asked[order.id] = order
        self._pending[node.id] += 1
        self._count(node, in_flight=1, open_leaves=-int(node.expandable))
        if node.status == "dead":
            node.reason = None
        node.status = "expanding"
        return order

    def withdraw(self, order: Expansion) -> None:
        """Take back an order that will not be sent."""
        del self.asked[order.id]
        ends = (o.first_sample + o.n for o in self.asked.values() if o.node_id == order.node_id)
        self._samples_asked[order.node_id] = max(ends, default=0)
        node = self.node(order.node_id)
        again = node.id in self._reopened
        self._settle(node)
        if again:
            self.reopen(node)

    def grow(self, outcome: Outcome) -> list[Node]:
        """Insert what came back and return the new nodes; a repeated outcome changes nothing.

        Blank samples make no node. If nothing usable came back, the expanded node is complete when a sample ended at
        once behind some text, and dead with a reason otherwise.
        """
        if outcome.expansion_id in self.told:
            return []
        order = self.asked[outcome.expansion_id]
        self.told.add(order.id)
        if outcome.cancelled:
            self.cancelled.add(order.id)
        node = self.node(order.node_id)
        usable = [sample for sample in outcome.samples if not sample.blank]
        grown = [self._child(node, sample, outcome.engine, order) for sample in usable]
        if node.depth > 0 and any(sample.blank and sample.finish in ENDED for sample in outcome.samples):
            self._finish(node)
            node.reason = node.reason or "ended"
        if not grown:
            failures = self._failures.setdefault(node.id, {})
            failures[order.first_sample] = outcome.error or "blank: every sample was empty"
        self._settle(node)
        return grown

    def prune(self, node: Node, reason: str) -> None:
        """Give up an open node; the reason is kept for the report."""
        if node.status == "open":
            self._count(node, open_leaves=-int(node.expandable))
            node.status, node.reason = "pruned", reason
            self.pruned.append(node)

    def close(self, node: Node) -> None:
        """Never expand this node, though its path is not complete."""
        self._count(node, open_leaves=-int(node.expandable))
        node.closed = True

    def reopen(self, node: Node) -> None:
        """Let an expanded node be expanded once more."""
        if node.status == "expanded":
            node.status = "open"
            self._reopened.add(node.id)
            self._count(node, open_leaves=int(node.expandable))

    def backup(self, node: Node, value: float) -> None:
        """N += m and W += m value for `node` and every node above it, m its multiplicity; its parent's `born` too.

        value: in [0, 1].
        """
        node.value = round(value * _EXACT) / _EXACT
        if (parent := self.parent(node)) is not None:
            parent.born += node.multiplicity
            parent.born_sum += node.value * node.multiplicity
        for above in self.path(node):
            above.visits += node.multiplicity
            above.value_sum += node.value * node.multiplicity

    def _settle(self, node: Node) -> None:
        """One order of `node` less in flight; the last one decides what the node is, whatever their order."""
        self._pending[node.id] -= 1
        self._count(node, in_flight=-1)
        if self._pending[node.id]:
            return
        self._reopened.discard(node.id)
        if self.has_children(node):
            node.status = "expanded"
        elif node.complete:
            node.status = "terminal"
        elif failures := self._failures.get(node.id):
            node.status, node.reason = "dead", failures[min(failures)]
        else:
            node.status = "open"
            self._count(node, open_leaves=int(node.expandable))

    def _count(self, node: Node, in_flight: int = 0, open_leaves: int = 0) -> None:
        if not in_flight and not open_leaves:
            return
        above: Node | None = node
        while above is not None:
            above.in_flight += in_flight
            above.open_leaves += open_leaves
            above = None if above.parent is None else self._nodes[above.parent]

    def _child(self, parent: Node, sample: Sample, engine: str, order: Expansion) -> Node:
        complete = self.completes(parent, sample)
        verdict = sample.verdict
        node = Node(
            id=f"{parent.id}.{sample.index}",
            parent=parent.id,
            depth=parent.depth + 1,
            index=sample.index,
            thought=_thought(sample),
            hint=order.hint,
            status=_status(sample, complete),
            closed=order.mode == "rollout",
            rollout=order.mode == "rollout",
            score=verdict.score if verdict else None,
            standing=verdict.standing if verdict else None,
            multiplicity=sample.multiplicity,
            engine=engine,
            reason=PRUNED if sample.finish == "pruned" else _remark(verdict) if verdict else None,
        )
        self._insert(node)
        if node.status == "pruned":
            self.pruned.append(node)
        if complete:
            self._finish(node)
        return node

    def _finish(self, node: Node) -> None:
        if not node.complete:
            node.complete = True
            self._complete.append(node)

    def _insert(self, node: Node) -> None:
        self.graph.add_node(node.id, node=node)
        self._nodes[node.id] = node
        self._children[node.id] = []
        if node.depth > self.height:
            self._levels.append([])
        self._levels[node.depth].append(node)
        if node.parent is not None:
            self.graph.add_edge(node.parent, node.id)
            insort(self._children[node.parent], node, key=lambda child: child.index)
        self._count(node, open_leaves=int(node.expandable))

    # -- export ----------------------------------------------------------------------------------------------------
    def to_json(self) -> dict[str, Any]:
        """JSON-ready export in canonical order; equal, `engine` apart, for runs that promise equality."""
        return {"nodes": [node_json(node) for node in sorted(self.nodes(), key=canonical)]}


def _thought(sample: Sample) -> Thought:
    return Thought(
        sample.text,
        sample.token_ids,
        sample.finish,
        sample.logprob,
        sample.confidence,
        sample.lowest,
        sample.asked,
    )


def _status(sample: Sample, complete: bool) -> Status:
    if sample.finish == "pruned":
        return "pruned"
    return "terminal" if complete else "open"


def _remark(verdict: Verdict) -> str | None:
    if verdict.error:
        return f"verifier: {verdict.error}"
    return f"{verdict.by} skipped verification: {verdict.skipped}" if verdict.skipped else None
