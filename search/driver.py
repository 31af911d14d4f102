"""TreeSearch: the loop ask -> expand -> verify -> tell until the strategy is done or a budget binds."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from search import budget as budgets
from search.budget import Budget, Spent
from search.landing import landed
from search.node import Node
from search.ports import Candidate, Context, Pool, Verifier
from search.prompts import ChatPrompt
from search.result import SearchResult
from search.samples import deduplicate, judged
from search.strategies.base import Strategy
from search.tree import SearchTree
from search.types import Cost, Event, Expansion, Outcome, Problem, Sampling, Verdict
from search.verifiers.sound import sound_verdicts

EventSink = Callable[[Event], None]
Scored = tuple[Context, float, int]
"""A judged node: its path, score and depth."""


class TreeSearch:
    """Runs one strategy on one pool; several `run` calls may be under way at once in one event loop.

    capacity: orders a strategy may have in flight, a constant so that the tree does not depend on how many engines
    there are. clock: seconds, injected. on_event: called synchronously with every event.
    """

    def __init__(
        self,
        pool: Pool,
        strategy: Strategy,
        verifier: Verifier | None = None,
        *,
        prompt: ChatPrompt | None = None,
        sampling: Sampling | None = None,
        budget: Budget | None = None,
        seed: int = 0,
        capacity: int = 16,
        clock: Callable[[], float] = time.monotonic,
        on_event: EventSink | None = None,
    ) -> None:
        self.pool = pool
        self.strategy = strategy
        self.verifier = verifier if strategy.judges else None
        self.prompt = prompt or ChatPrompt()
        self.sampling = sampling or Sampling()
        self.budget = budget or Budget()
        self.seed = seed
        self.capacity = capacity
        self.clock = clock
        self.on_event = on_event or (lambda event: None)
        validate(pool.capabilities, strategy, self.verifier)

    def plant(self, problem: Problem) -> SearchTree:
        """A tree with only its root, prompts rendered by the pool's own chat template."""
        hints = self.strategy.hints or ("",)
        prompts = {hint: self.pool.encode(self.prompt.messages(problem, hint)) for hint in hints}
        prompts.setdefault("", next(iter(prompts.values())))
        return SearchTree(problem, prompts, self.sampling, self.seed)

    async def run(self, problem: Problem) -> SearchResult:
        """Search until the strategy has nothing to ask or a budget binds. Never raises for a failed branch."""
        run = _Run(self, self.plant(problem))
        self._emit(run, "start", strategy=self.strategy.name, seed=self.seed)
        reason = await self._waves(run)
        result = self._result(run, reason)
        await self.pool.finish(problem.id, [(prompt,) for prompt in run.tree.prompts.values()])
        self._emit(run, "finish", answer=result.answer, stop_reason=result.stop_reason, error=result.error)
        return result

    async def _waves(self, run: _Run) -> str | None:
        """Name of the budget that ended the search, or None if the strategy ended it."""
        while True:
            run.spent.seconds = self.clock() - run.started
            if (bound := budgets.binding(self.budget, run.spent)) is not None:
                return bound
            asked = self.strategy.ask(run.tree, self.capacity)
            if not asked:
                return None
            await self._grow(run, self._admit(run, asked))

    def _admit(self, run: _Run, asked: Sequence[Expansion]) -> list[Expansion]:
        """Orders the budget allows, at least one; greedy orders are cut to the one sample they can differ by."""
        wave = []
        single = [self._single(run, order) for order in asked]
        limits = self.budget if self.verifier else replace(self.budget, verifications=None)
        for order, allowed in zip(single, budgets.clip(limits, run.spent, single), strict=True):
            if allowed is None:
                run.tree.withdraw(order)
            else:
                wave.append(allowed)
        return wave

    def _single(self, run: _Run, order: Expansion) -> Expansion:
        if order.sampling.temperature > 0 or order.n == 1 or order.mode == "propose":
            return order
        self._warn(run, f"temperature 0: {order.n} samples would be equal, drawing one")
        return replace(order, n=1)

    async def _grow(self, run: _Run, wave: Sequence[Expansion]) -> None:
        scored: list[Scored] = []
        async with aclosing(landed(self.pool, self.strategy, run.tree, wave)) as portions:
            async for outcomes in portions:
                scored += await self._tell(run, [deduplicate(outcome) for outcome in outcomes])
        run.spent.expansions += len(wave)
        run.spent.nodes = len(run.tree) - 1
        await self._tidy(run, scored)
        self._emit(run, "wave", expansions=len(wave), nodes=run.spent.nodes, tokens=run.spent.tokens)

    async def _tell(self, run: _Run, outcomes: Sequence[Outcome]) -> list[Scored]:
        """Book, judge and tell; the new nodes that have a score."""
        for outcome in outcomes:
            run.book(outcome)
            if outcome.cancelled:
                self._emit(run, "cancelled", expansion=outcome.expansion_id, saved=outcome.cost.saved)
        verdicts = await self._verify(run, outcomes)
        scored: list[Scored] = []
        for outcome in outcomes:
            count = sum(not sample.blank for sample in outcome.samples)
            told = judged(outcome, verdicts[:count]) if self.verifier else outcome
            verdicts = verdicts[count:]
            self.strategy.tell(run.tree, told)
            for node in self._new_nodes(run, told):
                self._emit(run, "node", **_node_event(node))
                if node.score is not None:
                    scored.append((run.tree.context(node), node.score, node.depth))
        return scored

    async def _tidy(self, run: _Run, scored: Sequence[Scored]) -> None:
        """Feed omega to the block index and free what this wave made useless."""
        if scored:
            await self.pool.note_scores(scored)
        pruned = run.tree.pruned[run.num_released :]
        run.num_released += len(pruned)
        freed = [run.tree.context(node) for node in pruned if _private(run.tree, node)]
        if freed:
            await self.pool.release(freed)

    async def _verify(self, run: _Run, outcomes: Sequence[Outcome]) -> list[Verdict]:
        """One verdict per non-blank sample of the wave, in canonical order, in one batch."""
        if self.verifier is None:
            return []
        batch = [candidate for outcome in outcomes for candidate in _candidates(run.tree, outcome)]
        if not batch:
            return []
        began = self.clock()
        left = None if self.budget.seconds is None else self.budget.seconds - (began - run.started)
        verdicts = await sound_verdicts(self.verifier, batch, left)
        for error in sorted({v.error for v in verdicts if v.error}):
            self._warn(run, f"verifier: {error}")
        run.spent.verifications += len(batch)
        for verdict in verdicts:
            run.cost += replace(verdict.cost, seconds={}, actual_hit=0)
        run.cost += Cost(seconds={"verify": self.clock() - began})
        return verdicts

    def _new_nodes(self, run: _Run, outcome: Outcome) -> list[Node]:
        ids = (f"{outcome.node_id}.{s.index}" for s in outcome.samples if not s.blank)
        return [run.tree.node(node_id) for node_id in ids if node_id in run.tree.graph]

    def _result(self, run: _Run, bound: str | None) -> SearchResult:
        tree = run.tree
        selection = self.strategy.answer(tree)
        reason = bound or selection.reason
        if run.errors and run.failed == len(run.tree.told):
            reason = "failed"
        run.spent.seconds = self.clock() - run.started
        run.cost += Cost(seconds={"total": run.spent.seconds})
        return SearchResult(
            problem=tree.problem,
            answer=selection.answer,
            text=tree.text(tree.node(selection.node_id)) if selection.node_id else "",
            complete=selection.complete,
            stop_reason=reason,
            strategy=self.strategy.name,
            seed=self.seed,
            tree=tree,
            cost=run.cost,
            engines={name: dict(row) for name, row in run.engines.items()},
            node_id=selection.node_id,
            votes=selection.votes,
            unused={**budgets.unused(self.budget, run.spent), **selection.unused},
            warnings=tuple(run.warnings),
            error=run.errors[-1] if reason == "failed" else None,
        )

    def broken(self, problem: Problem, error: BaseException) -> SearchResult:
        """The result of a search that could not go on because code of the user's raised."""
        tree = SearchTree(problem, {"": ()}, self.sampling, self.seed)
        text = f"{type(error).__name__}: {error}"
        name = self.strategy.name
        return SearchResult(problem, None, "", False, "failed", name, self.seed, tree, Cost(), {}, error=text)

    def _warn(self, run: _Run, text: str) -> None:
        if text not in run.warnings:
            run.warnings.append(text)
            self._emit(run, "warning", text=text)

    def _emit(self, run: _Run, kind: str, **data: Any) -> None:
        self.on_event(Event(kind, run.tree.problem.id, self.clock() - run.started, data))


class _Run:
    """Books of one search under way."""

    def __init__(self, search: TreeSearch, tree: SearchTree) -> None:
        self.tree = tree
        self.started = search.clock()
        self.spent = Spent()
        self.cost = Cost()
        self.engines: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.warnings: list[str] = []
        self.errors: list[str] = []
        self.failed = 0
        self.num_released = 0

    def book(self, outcome: Outcome) -> None:
        cost = outcome.cost
        self.cost += cost
        self.spent.tokens += cost.generated
        if outcome.error is not None and not outcome.cancelled:
            self.errors.append(outcome.error)
            self.failed += 1
        if outcome.engine:
            row = self.engines[outcome.engine]
            row["expansions"] += 1
            row["generated"] += cost.generated
            row["prefilled"] += cost.prefilled
            row["reused"] += sum(cost.reused.values())


def validate(capabilities: frozenset[str], strategy: Strategy, verifier: Verifier | None) -> None:
    """Refuse a strategy or verifier that asks for what the engines cannot do, naming a substitute."""
    missing = sorted((strategy.needs | (verifier.needs if verifier else frozenset())) - capabilities)
    if not missing:
        return
    who = f"strategy {strategy.name!r}" if strategy.needs - capabilities else "the verifier"
    raise ValueError(
        f"{who} needs {', '.join(missing)}, which this engine does not give "
        f"(it gives: {', '.join(sorted(capabilities)) or 'nothing beyond text'}); "
        f"use strategy 'self_consistency' or 'greedy', or a verifier of your own (verifier=callable)"
    )


def _candidates(tree: SearchTree, outcome: Outcome) -> list[Candidate]:
    parent = tree.node(outcome.node_id)
    context = tree.asked[outcome.expansion_id].context
    steps = tree.steps(parent)
    return [
        Candidate(
            problem=tree.problem,
            node_id=f"{parent.id}.{sample.index}",
            context=(*context, sample.token_ids),
            steps=(*steps, sample.text),
            complete=tree.completes(parent, sample),
            engine=outcome.engine,
            confidence=sample.confidence,
        )
        for sample in outcome.samples
        if not sample.blank
    ]


def _private(tree: SearchTree, node: Node) -> bool:
    """Whether what engines hold of this pruned node (all but its last token) is no live sibling's too."""
    parent = tree.parent(node)
    prefix = node.thought.token_ids[:-1]
    siblings = tree.children(parent) if parent else []
    return not any(s.status != "pruned" and s.thought.token_ids[: len(prefix)] == prefix for s in siblings)


def _node_event(node: Node) -> dict[str, Any]:
    return {
        "node": node.id,
        "parent": node.parent,
        "score": node.score,
        "status": node.status,
        "engine": node.engine,
        "tokens": len(node.thought.token_ids),
        "text": node.thought.text,
    }
