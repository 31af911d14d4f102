"""TreeSearch: the loop ask -> expand -> verify -> tell until the strategy is done or a budget binds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from search import budget as budgets
from search.books import Books
from search.budget import Budget
from search.cgee.gate import Gate
from search.cgee.skipping import Skipping
from search.landing import landed
from search.node import Node
from search.ports import Candidate, Pool, Verifier
from search.prompts import ChatPrompt
from search.result import SearchResult
from search.samples import deduplicate, judged
from search.states import merge_siblings
from search.strategies.base import Strategy
from search.tree import SearchTree
from search.types import Cost, Event, Expansion, Outcome, Problem, Sampling, Verdict
from search.verifiers.sound import kept, sound_verdicts
from search.wave_log import WaveLog, require_same

EventSink = Callable[[Event], None]


class TreeSearch:
    """Runs one strategy on one pool; several `run` calls may be under way at once in one event loop.

    capacity: orders a strategy may have in flight, a constant so that the tree does not depend on how many engines
    there are. gate: which waves need no verification (CGEE level 1). clock: seconds, injected. on_event: called
    synchronously with every event. merge: whether siblings of equal canonical state become one node (ASKS `merged`);
    None: where the strategy's `merges` allows it. tiers: ASKS tiers that may approximate; None: those of the engines'
    configuration.
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
        gate: Gate | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_event: EventSink | None = None,
        merge: bool | None = None,
        tiers: Sequence[str] | None = None,
    ) -> None:
        self.merge = bool(getattr(strategy, "merges", True)) if merge is None else merge
        self.tiers = None if tiers is None else tuple(tiers)
        self.pool = pool
        self.strategy = strategy
        self.verifier = verifier if strategy.judges else None
        self.prompt = prompt or ChatPrompt()
        self.sampling = sampling or Sampling()
        self.budget = budget or Budget()
        self.seed = seed
        self.capacity = capacity
        self.gate = gate if self.verifier else None
        self.clock = clock
        self.on_event = on_event or (lambda event: None)
        validate(pool.capabilities, strategy, self.verifier, self.gate)

    def plant(self, problem: Problem) -> SearchTree:
        """A tree with only its root, prompts rendered by the pool's own chat template."""
        hints = self.strategy.hints or ("",)
        prompts = {hint: self.pool.encode(self.prompt.messages(problem, hint)) for hint in hints}
        prompts.setdefault("", next(iter(prompts.values())))
        return SearchTree(problem, prompts, self.sampling, self.seed)

    async def run(self, problem: Problem, log: WaveLog | None = None) -> SearchResult:
        """Search until the strategy has nothing to ask or a budget binds. Never raises for a failed branch.

        log: what it holds is told again, not done again; each further wave is appended. ReplayError if it is not this
        search's.
        """
        run = self._begin(problem, log)
        try:
            return await self._search(run)
        except BaseException as error:
            with suppress(Exception):  # the sink itself may be what raised
                self._emit(run, "left", why=type(error).__name__)
            raise

    async def _search(self, run: Books) -> SearchResult:
        problem = run.tree.problem
        self._emit(run, "start", strategy=self.strategy.name, seed=self.seed)
        run.skipping.open()
        prompts = [(prompt,) for prompt in run.tree.prompts.values()]
        try:
            await self._replay(run)
            reason = await self._waves(run)
            run.skipping.close()
            result = self._result(run, reason)
        except (Exception, asyncio.CancelledError):
            await self.pool.finish(problem.id, [*prompts, *kept(self.verifier, problem)])
            raise
        await self.pool.finish(problem.id, [*prompts, *kept(self.verifier, problem)])
        self._emit(run, "finish", answer=result.answer, stop_reason=result.stop_reason, error=result.error)
        return result

    def _begin(self, problem: Problem, log: WaveLog | None) -> Books:
        def tell(kind: str, **data: Any) -> None:
            if kind == "warning":
                self._warn(run, data["text"])
            else:
                self._emit(run, kind, **data)

        skipping = Skipping(self.gate, self.strategy, self.merge, tell)
        run = Books(self.plant(problem), self.clock(), log, skipping)
        return run

    async def _replay(self, run: Books) -> None:
        """Tell the log's waves to the strategy again; engines prefill their KV when it is needed."""
        waves = run.log.waves() if run.log else ()
        for number, wave in enumerate(waves, 1):
            require_same(self._admit(run, self.strategy.ask(run.tree, self.capacity)), wave, number)
            for outcome in wave.outcomes:
                run.book(outcome)
                self.strategy.tell(run.tree, outcome)
            run.restore(wave)
        if waves:
            run.started = self.clock() - waves[-1].seconds
            run.skipping.resume()
            await self._tidy(run, [node for node in run.tree.nodes() if _worth(node) is not None])
            self._emit(run, "resume", waves=len(waves), nodes=run.spent.nodes, tokens=run.spent.tokens)

    async def _waves(self, run: Books) -> str | None:
        """Name of the budget that ended the search, or None if the strategy ended it."""
        while True:
            run.spent.seconds = self.clock() - run.started
            if (bound := budgets.binding(self.budget, run.spent)) is not None:
                return bound
            asked = self.strategy.ask(run.tree, self.capacity)
            if not asked:
                return None
            await self._grow(run, self._admit(run, asked))

    def _admit(self, run: Books, asked: Sequence[Expansion]) -> list[Expansion]:
        """Orders the budget allows, at least one; greedy orders are cut to the one sample they can differ by."""
        wave = []
        single = [self._single(run, order) for order in asked]
        limits = self.budget if self.verifier else replace(self.budget, verifications=None)
        for order, allowed in zip(single, budgets.clip(limits, run.spent, single), strict=True):
            if allowed is None:
                run.tree.withdraw(order)
            else:
                wave.append(replace(allowed, tiers=self.tiers))
        run.tree.asked.update((order.id, order) for order in wave)
        return wave

    def _single(self, run: Books, order: Expansion) -> Expansion:
        if order.sampling.temperature > 0 or order.n == 1 or order.mode == "propose":
            return order
        self._warn(run, f"temperature 0: {order.n} samples would be equal, drawing one")
        return replace(order, n=1)

    async def _grow(self, run: Books, wave: Sequence[Expansion]) -> None:
        run.open_wave()
        scored: list[Node] = []
        async with aclosing(landed(self.pool, self.strategy, run.tree, wave, run.skipping.whole, run.log)) as portions:
            async for outcomes in portions:
                scored += await self._tell(run, [deduplicate(outcome) for outcome in outcomes])
        run.close_wave()
        await self._tidy(run, scored)
        if run.log:
            await run.log.append(run.record(self.clock() - run.started))
        counts = {"nodes": run.spent.nodes, "tokens": run.spent.tokens, "merged": run.merged}
        self._emit(run, "wave", expansions=len(wave), **counts)

    async def _tell(self, run: Books, outcomes: Sequence[Outcome]) -> list[Node]:
        """Book, merge, judge and tell a portion of the wave; the new nodes that have a score or a standing."""
        for outcome in outcomes:
            run.book(outcome)
            if outcome.cancelled:
                self._emit(run, "cancelled", expansion=outcome.expansion_id, saved=outcome.cost.saved)
        if self.merge:
            outcomes = await self._merged(run, outcomes)
        verdicts = await self._verify(run, outcomes)
        scored: list[Node] = []
        for outcome in outcomes:
            count = sum(not sample.blank for sample in outcome.samples)
            told = judged(outcome, verdicts[:count]) if self.verifier else outcome
            verdicts = verdicts[count:]
            self.strategy.tell(run.tree, told)
            run.told.append(told)
            for node in self._new_nodes(run, told):
                self._emit(run, "node", **_node_event(node))
                if _worth(node) is not None:
                    scored.append(node)
        return scored

    async def _merged(self, run: Books, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """One sample for each canonical state among siblings; the KV of the others is freed."""
        kept, freed = merge_siblings(run.tree, outcomes)
        run.merged += sum(len(a.samples) - len(b.samples) for a, b in zip(outcomes, kept, strict=True))
        if freed:
            await self.pool.release(freed)
        return kept

    async def _tidy(self, run: Books, scored: Sequence[Node]) -> None:
        """Feed omega to the block index, on the problem's own scale, and free what this wave made useless."""
        if run.scale.widen(worth for node in scored if (worth := _worth(node)) is not None):
            scored = [node for node in run.tree.nodes() if node.status != "pruned"]
        told = [(run.tree.context(n), run.scale.of(w), n.depth) for n in scored if (w := _worth(n)) is not None]
        if told:
            await self.pool.note_scores(told)
        pruned = run.tree.pruned[run.num_released :]
        run.num_released += len(pruned)
        freed = [run.tree.context(node) for node in pruned if _private(run.tree, node)]
        if freed:
            await self.pool.release(freed)

    async def _verify(self, run: Books, outcomes: Sequence[Outcome]) -> list[Verdict]:
        """One verdict per non-blank sample, in canonical order: the verifier's in one batch, or CGEE's."""
        if self.verifier is None:
            return []
        batch = [candidate for outcome in outcomes for candidate in _candidates(run.tree, outcome)]
        if not batch:
            return []
        if skipped := run.skipping.verdicts(run.tree, outcomes, self.verifier, batch):
            return skipped
        began = self.clock()
        left = None if self.budget.seconds is None else self.budget.seconds - (began - run.started)
        verdicts = await sound_verdicts(self.verifier, batch, left)
        for error in sorted({v.error for v in verdicts if v.error}):
            self._warn(run, f"verifier: {error}")
        cost = Cost(seconds={"verify": self.clock() - began})
        for verdict in verdicts:
            device_s = verdict.cost.seconds.get("score", 0.0)
            cost += replace(verdict.cost, seconds={"score": device_s}, actual_hit=0)
        run.judged(cost, len(batch))
        run.skipping.verified(verdicts)
        return verdicts

    def _new_nodes(self, run: Books, outcome: Outcome) -> list[Node]:
        ids = (f"{outcome.node_id}.{s.index}" for s in outcome.samples if not s.blank)
        return [run.tree.node(node_id) for node_id in ids if node_id in run.tree.graph]

    def _result(self, run: Books, bound: str | None) -> SearchResult:
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
            skips=run.skipping.report,
        )

    def broken(self, problem: Problem, error: BaseException) -> SearchResult:
        """The result of a search that could not go on because code of the user's raised."""
        tree = SearchTree(problem, {"": ()}, self.sampling, self.seed)
        text = f"{type(error).__name__}: {error}"
        name = self.strategy.name
        return SearchResult(problem, None, "", False, "failed", name, self.seed, tree, Cost(), {}, error=text)

    def _warn(self, run: Books, text: str) -> None:
        if text not in run.warnings:
            run.warnings.append(text)
            self._emit(run, "warning", text=text)

    def _emit(self, run: Books, kind: str, **data: Any) -> None:
        self.on_event(Event(kind, run.tree.problem.id, self.clock() - run.started, data))


def validate(
    capabilities: frozenset[str], strategy: Strategy, verifier: Verifier | None, gate: Gate | None = None
) -> None:
    """Refuse a strategy, verifier or CGEE rule that asks for what the engines cannot do, naming a substitute."""
    if gate and verifier and (lacking := sorted(gate.rule.needs - capabilities)):
        raise ValueError(
            f"cgee rule {gate.rule.name!r} needs {', '.join(lacking)}, which this engine does not give; "
            f"use 'agreement' or 'off'"
        )
    missing = sorted((strategy.needs | (verifier.needs if verifier else frozenset())) - capabilities)
    if not missing:
        return
    who = f"strategy {strategy.name!r}" if strategy.needs - capabilities else "the verifier"
    if "prune" in missing:
        raise ValueError(
            f"{who} with its option prune needs {', '.join(missing)}, which this engine does not give "
            f"(it gives: {', '.join(sorted(capabilities)) or 'nothing beyond text'}); use prune=0"
        )
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


def _worth(node: Node) -> float | None:
    """What omega is made of: the score, or what a rule gave a branch whose verification was skipped."""
    return node.standing if node.score is None else node.score


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
        "tokens": node.thought.generated,
        "text": node.thought.text,
    }
