"""Dispatcher: the driver's Pool. Places waves, feeds engines by credits, re-dispatches what a failure lost."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from actors.assigner import Assigner
from actors.fetching import Fetching
from actors.fleet import Fleet
from actors.flight import DispatchedFlight
from actors.handles import EngineDownError, EngineHandle, IndexHandle
from actors.live_pins import LivePins
from actors.local_view import LocalView
from actors.messages import tree_name
from actors.order_flow import OrderFlow
from actors.orders import Flow, FlowOptions, Order
from actors.path_keys import PathKeys
from actors.placement import Branch, Placed
from actors.policies import registry
from actors.reporting import Reporting
from actors.rsbcm import Scored
from actors.scoring import Scoring
from actors.transfer import Mover
from engine.base import Codec, begin, flat, without_repeated_end
from engine.sketch import sketch
from search.ports import Context, Flight, Keep, Message
from search.types import Expansion, Outcome, Score, ScoreRequest

T = TypeVar("T")
_WEIGHT = 0.02
_MISSED = 1 << 16


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """attempts: how often one order is tried in all. rows_per_engine: sample rows that fill an engine, for placement.

    batch_rows: rows an engine decodes at once, for credits; None is `rows_per_engine`. call_timeout_s: an engine that
    is silent for longer counts as down (sooner where measured rates say so). patience_s: wait for a first engine.
    near_roots: whether a new tree goes to an engine that holds a near root (of use where ASKS tiers approximate).
    placement: see `actors.policies.registry`. hedging: whether stragglers are done twice. seed: of placement's draws.
    """

    attempts: int = 3
    rows_per_engine: int = 2
    batch_rows: int | None = None
    call_timeout_s: float = 600.0
    patience_s: float = 300.0
    near_roots: bool = False
    placement: str = registry.DEFAULT
    hedging: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        registry.check(self.placement)


class Dispatcher:
    """engines may live anywhere, join and leave; `index` is asked once a wave and replaced by a local view while it is
    down. clock: seconds, injected; waiting is asyncio's, on the running loop."""

    def __init__(
        self,
        engines: Sequence[EngineHandle],
        index: IndexHandle,
        codec: Codec,
        fingerprint: str,
        capabilities: frozenset[str],
        options: PoolOptions | None = None,
        on_failure: Callable[[str, str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        mover: Mover | None = None,
    ) -> None:
        if not engines:
            raise ValueError("a pool needs at least one engine")
        self.index = index
        self.codec = codec
        self.capabilities = capabilities
        self.options = options or PoolOptions()
        self.on_failure = on_failure or (lambda engine, reason: None)
        self.on_call: Callable[[str, bool], None] = lambda engine, begins: None
        """Called when a call to an engine begins (True) and when it ends, however it ends."""
        self.on_placed: Callable[[str, Sequence[Placed]], None] = lambda tree, decisions: None
        """Called with every placement of orders of a tree."""
        self.on_outcome: Callable[[Outcome], None] = lambda outcome: None
        """Called with every outcome of an engine, its cost complete."""
        self.keys = PathKeys(fingerprint)
        self._local = LocalView()
        self._missed: dict[str, deque[bytes]] = {}
        """Keys to release at engines that are down."""
        self._scored: dict[bytes, set[bytes]] = {}
        """Keys that were scored, by their prompt's."""
        self._used_share = 0.5
        """Of the tokens that a row may generate those that rows do generate: learned."""
        self._sent: set[asyncio.Task[Any]] = set()
        self.fleet = Fleet(engines, self._failure, self._forget, self._joined, clock)
        self._assigner = Assigner(
            index,
            self.fleet,
            self._local,
            self.options.rows_per_engine,
            self.options.placement,
            self.options.seed,
            self._failure,
        )
        self._pins = LivePins(self._assigner.driver, index, clock)
        self._reporting = Reporting(self._report, lambda: bool(self._pins.trees) or self.fleet.busy())
        self.flow = OrderFlow(self.fleet, self._flow_options(), self._assign, self._landed, self._spawn)
        self.flow.on_call = self._called
        self.flow.on_moved = lambda tree, placed: self.on_placed(tree, [placed])
        self.mover = mover or Mover(None, 1.0)
        self.flow.fetch = Fetching(self.fleet, self.mover).fetch
        self.flow.held = lambda engine, order: self._local.held(engine, order.branch)
        self.flow.link = lambda: self.mover.link
        self.flow.on_over = self._worked
        self._scoring = Scoring(
            self.fleet,
            self.options.attempts,
            self.options.call_timeout_s,
            self.options.patience_s,
            self._called,
            self._scored_there,
            self._spawn,
        )

    def _flow_options(self) -> FlowOptions:
        options = self.options
        return FlowOptions(
            attempts=options.attempts,
            batch_rows=options.batch_rows or options.rows_per_engine,
            call_timeout_s=options.call_timeout_s,
            patience_s=options.patience_s,
            moves=options.placement == registry.DEFAULT,
            cancels="cancel" in self.capabilities,
            hedging=options.hedging,
        )

    @property
    def engines(self) -> Mapping[str, EngineHandle]:
        return self.fleet.engines

    # -- Pool ------------------------------------------------------------------------------------------------------
    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple(begin(self.codec, messages))

    def question(self, text: str) -> str:
        return self.codec.next_turn(text)

    def count_tokens(self, text: str) -> int:
        return len(self.codec.encode(text))

    def tokens(self, text: str) -> tuple[int, ...]:
        return tuple(self.codec.encode(text))

    def follow_up(self, context: Context, text: str) -> tuple[int, ...]:
        turn = self.codec.encode(self.codec.next_turn(text))
        return tuple(without_repeated_end(self.codec, flat(context), turn))

    async def expand(self, wave: Sequence[Expansion], keep: Keep | None = None) -> list[Outcome]:
        """One outcome per order, in order. An order fails only after `attempts` tries."""
        outcomes: dict[str, Outcome] = {}

        def deliver(outcome: Outcome) -> None:
            outcomes[outcome.expansion_id] = outcome
            if keep is not None:
                keep(outcome)

        await self._run(wave, False, deliver, [])
        return [outcomes[order.id] for order in wave]

    def launch(self, wave: Sequence[Expansion]) -> Flight:
        """One placement for the wave, one call an order."""
        flows: list[Flow] = []
        return DispatchedFlight(
            len(wave), lambda deliver: self._run(wave, True, deliver, flows), partial(self._recall, flows)
        )

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        """Each request goes to the engine that grew its branch, or to another one if that is down."""
        return await self._scoring.score(requests)

    async def note_scores(self, scores: Sequence[tuple[Context, float, int]]) -> None:
        """The index is told, and the engines that work on these trees, which evict by it; nobody is waited for."""
        items = [Scored(self.keys.of(context)[-1], score, depth) for context, score, depth in scores]
        self.fleet.tell(self.index.note_scores(items, self._assigner.driver))
        told = [(item.key, item.score, item.depth) for item in items]
        for item, (context, _, _) in zip(items, scores, strict=True):
            self._scored.setdefault(self.keys.of(context[:1])[-1], set()).add(item.key)
        await self._send([context for context, _, _ in scores], lambda name: self.engines[name].note_scores(told))

    async def finish(self, problem_id: str, contexts: Sequence[Context]) -> None:
        """Free the whole tree and its place at the index; the calls are sent, not waited for."""
        await self.release(contexts)
        scored: set[bytes] = set()
        for root in {self.keys.of(context[:1])[-1] for context in contexts}:
            self._local.end(root)
            scored |= self._scored.pop(root, set())
        tree = tree_name(problem_id)
        self._assigner.end_tree(tree)
        self.fleet.tell(self._pins.unpin(scored))
        self.fleet.tell(self._pins.end_tree(tree))
        await asyncio.sleep(0)

    async def release(self, contexts: Sequence[Context]) -> None:
        """Free the branches on the engines that work on these trees; the calls are sent, not waited for."""
        keys = [self.keys.of(context)[-1] for context in contexts]
        self._local.release(keys)
        self.fleet.tell(self._pins.unpin(keys))
        for name in await self._send(contexts, lambda name: self._release(name, keys)):
            self._miss(name, keys)

    async def stats(self) -> dict[str, Mapping[str, Any]]:
        """Counters of every engine; of one that is down, its state only."""
        rows: dict[str, Mapping[str, Any]] = {}
        for name in list(self.engines):
            found = await self.fleet.stats(name) if self.fleet.is_up(name) else None
            rows[name] = {"name": name, "state": "down"} if found is None else found
        return rows

    # -- elastic ---------------------------------------------------------------------------------------------------
    def add(self, engine: EngineHandle) -> None:
        """An engine joins, while searches run; it starts slowly. ValueError if there is one of its name."""
        self.fleet.add(engine)

    async def drain(self, name: str, grace_s: float = 30.0) -> EngineHandle:
        """An engine is to leave (its node is preempted): no new orders, what waits for it goes elsewhere at once, and
        what it works on after `grace_s`, or once another call removes it. Returns its handle, to be ended. KeyError if
        there is no such engine."""
        self.fleet.retire(name)
        handle = self.engines[name]
        self.flow.evacuate(name)
        if not await self.fleet.quiet(name, grace_s):
            await self.flow.abort(name)
        if self.engines.get(name) is handle:
            self.fleet.remove(name)
            self._missed.pop(name, None)
            await self._forget(name)
        return handle

    async def remove(self, name: str) -> EngineHandle:
        """An engine leaves now: what it works on goes elsewhere, and no attempt is counted."""
        return await self.drain(name, grace_s=0.0)

    def close(self) -> None:
        self.fleet.close()
        self._reporting.close()
        self.flow.relief.close()
        for task in list(self._sent):
            task.cancel()

    def check_integrity(self) -> None:
        """Credits, bookings and loads are those of the orders under way: all zero once there are none."""
        self.flow.check_integrity()

    # -- orders ----------------------------------------------------------------------------------------------------
    async def _run(
        self, wave: Sequence[Expansion], alone: bool, deliver: Callable[[Outcome], None], flows: list[Flow]
    ) -> None:
        flow = Flow(wave, deliver)
        flows.append(flow)
        now = self.fleet.clock()
        orders = [Order(work, self._branch(work), flow, alone, now) for work in wave]
        await self.flow.run(flow, orders)

    def _recall(self, flows: Sequence[Flow], ids: Collection[str]) -> None:
        for flow in flows:
            self.flow.recall(flow, ids)

    def _branch(self, order: Expansion) -> Branch:
        ends, total = [], 0
        for segment in order.context:
            total += len(segment)
            ends.append(total - 1)
        new_tokens = max(round(self._used_share * order.sampling.max_tokens), 1)
        return Branch(order.id, self.keys.of(order.context), tuple(ends), order.n, new_tokens)

    async def _assign(self, orders: Sequence[Order]) -> list[Placed]:
        """Decisions for orders of one tree, for engines that they were not tried on; none if no engine is up."""
        branches = tuple(
            replace(
                order.branch,
                avoid=(*order.avoid, *order.at),
                grown_on=next(iter(self._local.holders(order.branch.keys[-1])), ""),
            )
            for order in orders
        )
        first = orders[0].work
        self._assigner.link = self.mover.link
        signature = sketch(first.context[0]) if self.options.near_roots and len(first.context) == 1 else b""
        tree, again = tree_name(first.problem_id), any(order.placed for order in orders)
        decisions = await self._assigner.assign(tree, branches, signature, again)
        if all(order.done for order in orders):  # their tree may have ended meanwhile: nothing is to be noted of it
            return decisions
        self._pins.note(tree, (key for branch in branches for key in branch.keys))
        self.fleet.tell(self._pins.renew())
        for order, placed in zip(orders, decisions, strict=False):
            self._local.note_use(placed.actor, order.branch.root)
        if not any(order.at for order in orders):  # copies for stragglers are told of when they are sent
            self.on_placed(first.problem_id, decisions)
        return decisions

    def _landed(self, order: Order, outcome: Outcome) -> None:
        """What the engine now holds, and that an order is done."""
        context = order.work.context
        self._local.note_use(outcome.engine, order.branch.root)
        for sample in outcome.samples:
            if sample.token_ids:
                used = len(sample.token_ids) / order.work.sampling.max_tokens
                self._used_share += _WEIGHT * (used - self._used_share)
                self._local.note(outcome.engine, self.keys.of((*context, sample.token_ids)))
        self.on_outcome(outcome)

    def _worked(self, name: str, order: Order) -> None:
        """An order of the engine's is over, whether its outcome counted or not."""
        self._used(name, order.branch.root)

    def _scored_there(self, name: str, request: ScoreRequest, over: bool) -> None:
        root = self.keys.of(request.context[:1])[-1]
        if over:
            self._used(name, root)
        else:
            self._local.note_use(name, root)

    def _used(self, name: str, root: bytes) -> None:
        """What an engine holds of a tree is released with it: at once where the tree ended before the call, as when
        another engine's copy of the order counted."""
        if self._local.used(root) is not None:
            self._local.note_use(name, root)
        elif self.fleet.reachable(name):
            self.fleet.tell(self._release(name, [root]))

    # -- engines ---------------------------------------------------------------------------------------------------
    async def _send(self, contexts: Sequence[Context], call: Callable[[str], Coroutine[Any, Any, None]]) -> list[str]:
        """Call the engines that worked on these prompts, all where that is not known, without waiting for an answer.
        Returns those that are down."""
        names: set[str] = set()
        for root in {self.keys.of(context[:1])[-1] for context in contexts}:
            used = self._local.used(root)
            names.update(self.engines if used is None else used)
        reachable = [name for name in sorted(names) if self.fleet.reachable(name)]
        for name in reachable:
            self.fleet.tell(call(name))
        await asyncio.sleep(0)
        return [name for name in names.intersection(self.engines) if name not in reachable]

    async def _release(self, name: str, keys: Sequence[bytes]) -> None:
        """Free these paths there; an engine that cannot be told counts as down, and is told when it is back."""
        life = self.fleet.life(name)
        try:
            await self.engines[name].release(keys)
        except EngineDownError as error:
            if self.fleet.life(name) == life and self.fleet.reachable(name):
                self.fleet.mark_down(name, str(error))
            if self.fleet.reachable(name):
                self.fleet.tell(self._release(name, keys))
            elif name in self.engines:
                self._miss(name, keys)

    def _miss(self, name: str, keys: Sequence[bytes]) -> None:
        self._missed.setdefault(name, deque(maxlen=_MISSED)).extend(keys)

    def _spawn(self, call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(call)
        self._sent.add(task)
        task.add_done_callback(self._sent.discard)
        return task

    def _called(self, engine: str, begins: bool) -> None:
        """What is outstanding has changed: other drivers that share the index are to see it."""
        self._reporting.soon()
        self.on_call(engine, begins)

    def _report(self) -> None:
        self.fleet.tell(self._pins.renew())
        self.fleet.tell(self._assigner.report())

    def _failure(self, who: str, reason: str) -> None:
        self.on_failure(who, reason)

    def _joined(self, name: str) -> None:
        """An engine can take calls. If it only seemed to be down, it holds what was released meanwhile."""
        if missed := self._missed.pop(name, None):
            self.fleet.tell(self._release(name, list(missed)))
        self.flow.poke(name)

    async def _forget(self, name: str) -> None:
        """An engine went down or left, and with it all it held; what waits for it goes elsewhere."""
        self.flow.evacuate(name)
        self._local.forget(name)
        await self.fleet.quietly(self.index.forget(name))
