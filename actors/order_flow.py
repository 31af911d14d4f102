"""Late binding: orders wait at the driver, planned for an engine, and are sent when a credit of that engine is free."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any

from actors.engine_actor import request_id
from actors.fleet import Fleet
from actors.handles import EngineDownError, EngineFailedError
from actors.link import Link
from actors.orders import Booking, Call, Flow, FlowOptions, Order, ReadyQueue
from actors.placement import Branch, Placed
from actors.relief import Relief
from actors.stragglers import HEDGE, Stragglers
from search.types import Cost, Outcome

Assign = Callable[[Sequence[Order]], Awaitable[list[Placed]]]
Landed = Callable[[Order, Outcome], None]


class OrderFlow:
    """assign: decisions for orders of one tree. on_landed: called with each outcome of an engine that counts.

    on_call: called when a call begins and when it ends. on_moved: called with each decision to take an order to
    an idle engine. fetch: brings missing KV from `Placed.source` before a call, and raises nothing. held: path tokens
    of an order that an engine is known to hold. link: how KV can be moved, if it can. on_over: called with each order
    of a call that ended, however it did.
    """

    def __init__(
        self,
        fleet: Fleet,
        options: FlowOptions,
        assign: Assign,
        on_landed: Landed,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self.fleet = fleet
        self.options = options
        self.on_call: Callable[[str, bool], None] = lambda engine, begins: None
        self.fetch: Callable[[str, Sequence[Order]], Awaitable[None]] | None = None
        self.on_moved: Callable[[str, Placed], None] = lambda tree, placed: None
        self.held: Callable[[str, Order], int] = lambda engine, order: 0
        self.link: Callable[[], Link | None] = lambda: None
        self.on_over: Callable[[str, Order], None] = lambda engine, order: None
        self.counts = {"calls": 0, "retries": 0, "moved": 0, "hedged": 0, "hedges_won": 0}
        self.assign = assign
        self._on_landed = on_landed
        self.spawn = spawn
        self.queues: dict[str, ReadyQueue] = {}
        self._calls: dict[str, dict[Call, None]] = defaultdict(dict)
        self._tokens = (f"{id(self):x}-{number}" for number in itertools.count())
        self._stragglers = Stragglers(self)
        self.relief = Relief(self)
        self._dirty: dict[str, None] = {}
        self._pumping: asyncio.AbstractEventLoop | None = None

    # -- waves -----------------------------------------------------------------------------------------------------
    async def run(self, flow: Flow, orders: Sequence[Order]) -> None:
        """Place the orders of a wave and wait until all are back; left early, what is not back is abandoned."""
        flow.orders.update((order.work.id, order) for order in orders)
        try:
            await self._place(orders)
            await flow.over
        finally:
            self._abandon(order for order in orders if not order.done)

    def recall(self, flow: Flow, ids: Collection[str]) -> None:
        """These orders need not go on: those that wait are over at once, engines are told of the others."""
        for id in ids:
            order = flow.orders.get(id)
            if order is None or order.done:
                continue
            order.recalled = True
            waiting = [name for name, booking in order.at.items() if not booking.request]
            for name in waiting:
                self.unqueue(order, name)
            if order.at:
                self._cancel_at_engines(order)
            else:
                self._let_go(order)

    def evacuate(self, name: str) -> None:
        """The engine takes no more orders: what waits for it goes elsewhere."""
        queue = self.queues.pop(name, None)
        orders = list(queue) if queue else []
        for order in orders:
            self._unbook(order, name)
        self._place_again([order for order in orders if order.unplaced])

    async def abort(self, name: str) -> None:
        """End the calls that are under way there; their orders go elsewhere and no attempt is counted."""
        calls = [call for call in self._calls[name] if call.task is not None]
        orders = [order for call in calls for order in call.orders]
        for call in calls:
            if call.task is not None:
                call.task.cancel()
        await asyncio.gather(*(call.task for call in calls if call.task is not None), return_exceptions=True)
        self._place_again([order for order in orders if order.unplaced])

    def poke(self, name: str) -> None:
        """Something changed at this engine: look once for what can be sent, when all that is ready now has come."""
        self._dirty[name] = None
        loop = asyncio.get_running_loop()
        if self._pumping is not loop:
            self._pumping = loop
            loop.call_soon(self._pump_all)

    # -- placing ---------------------------------------------------------------------------------------------------
    async def _place(self, orders: Sequence[Order]) -> None:
        """Plan each order for an engine. Orders of several trees are placed tree by tree.

        While it waits, somebody else may find an engine for an order, or end it.
        """
        pending = list(orders)
        while pending:
            some_up = await self.fleet.some_up(self.options.patience_s)
            trees: dict[str, list[Order]] = defaultdict(list)
            for order in pending:
                if order.unplaced and some_up:
                    trees[order.work.problem_id].append(order)
                elif order.unplaced:
                    self._give_up(order, order.error or "no engine answers")
            pending = []
            for members in trees.values():
                decisions = await self.assign(members)
                if not decisions:  # every engine went down in the meantime
                    pending += members
                    continue
                for order, placed in zip(members, decisions, strict=True):
                    if order.unplaced and not self._plan(order, placed):
                        pending.append(order)

    def _plan(self, order: Order, placed: Placed) -> bool:
        """Let the order wait for an engine; False if none is up any more."""
        name = self.fleet.pick(placed.actor, order.avoid)
        if not self.fleet.is_up(name):
            return False
        if name != placed.actor:
            placed = replace(placed, actor=name, predicted_hit=0)
        self.enqueue(order, name, placed)
        return True

    def enqueue(self, order: Order, name: str, placed: Placed) -> None:
        prefill = max(order.branch.length - placed.predicted_hit, 0)
        order.placed = True
        order.at[name] = Booking(placed, order.work.n, prefill)
        load = self.fleet.loads[name]
        load.rows += order.work.n
        load.prefill_tokens += prefill
        self.fleet.changed.add(name)
        self.queues.setdefault(name, ReadyQueue(self.options.batch_rows)).put(order)
        self.poke(name)

    def _unbook(self, order: Order, name: str) -> None:
        booking = order.at.pop(name)
        if (load := self.fleet.loads.get(name)) is not None:
            load.rows -= booking.rows
            load.prefill_tokens -= booking.prefill_tokens
            self.fleet.changed.add(name)

    def unqueue(self, order: Order, name: str) -> None:
        """Take back a copy that waits."""
        self.queues[name].discard(order)
        self._unbook(order, name)

    def _place_again(self, lost: Sequence[Order]) -> None:
        """Find other engines for what lost its own, but not for what was recalled meanwhile."""
        for order in lost:
            if order.recalled:
                self._let_go(order)
        orders = [order for order in lost if not order.recalled]
        if not orders:
            return

        async def place() -> None:
            try:
                await self._place(orders)
            except Exception as error:  # a fault of ours or of the index: the waves must not wait for ever
                for order in orders:
                    order.flow.fail(error)

        self.spawn(place())

    # -- sending ---------------------------------------------------------------------------------------------------
    def _pump_all(self) -> None:
        self._pumping = None
        dirty, self._dirty = self._dirty, {}
        for name in dirty:
            if self.fleet.is_up(name):
                self._pump(name)

    def _pump(self, name: str) -> None:
        """Send what the engine has credits for."""
        load, concurrent = self.fleet.loads[name], self.concurrent(name)
        while (room := load.room(self.options.batch_rows, concurrent)) > 0:
            queue = self.queues.get(name)
            if not queue:
                self.queues.pop(name, None)
                self.relief.watch(name)
                return
            self._send(name, queue.take(room, whole=not concurrent))
        if self.queues.get(name):
            self.relief.wake()
        else:
            self.queues.pop(name, None)

    def concurrent(self, name: str) -> bool:
        """Whether the engine serves several calls in one batch; handles that do not say serve one at a time."""
        return bool(getattr(self.fleet.engines[name], "concurrent", False))

    def coming(self, name: str, branch: Branch) -> int:
        """Tokens of the longest prefix of the branch that orders bring to the engine: those sent and those waiting."""
        sent = (order for call in self._calls.get(name, ()) for order in call.orders)
        orders = itertools.chain(sent, self.queues.get(name, ()))
        return branch.shared({key for order in orders for key in order.branch.keys})

    def late(self, name: str) -> bool:
        """Whether a call there takes longer than it should: what waits behind it had better go."""
        return any(call.is_late for call in self._calls.get(name, ()))

    def free_rows(self, name: str) -> int:
        """Rows that the engine could start at once, beside what waits for it already."""
        if not self.fleet.is_up(name):
            return 0
        room = self.fleet.loads[name].room(self.options.batch_rows, self.concurrent(name))
        return room - sum(order.work.n for order in self.queues.get(name, ()))

    def _send(self, name: str, orders: list[Order]) -> None:
        token = next(self._tokens)
        for order in orders:
            order.at[name].request = request_id(token, order.work.id)
        prefill = sum(order.at[name].prefill_tokens for order in orders)
        rows = sum(order.work.n for order in orders)
        call = Call(name, orders, rows, prefill, max(order.work.sampling.max_tokens for order in orders))
        load = self.fleet.loads[name]
        load.send(rows, self.fleet.clock())
        self.counts["calls"] += 1
        self._calls[name][call] = None
        call.task = self.spawn(self._call(call, token))
        call.task.add_done_callback(lambda task: self._end(call))
        self._stragglers.watch(call)

    async def _call(self, call: Call, token: str) -> None:
        name, load = call.engine, self.fleet.loads[call.engine]
        began = self.fleet.clock()
        row_seconds = load.row_seconds_until(began)
        self.on_call(name, True)
        try:
            if self.fetch is not None and any(order.at[name].placed.source for order in call.orders):
                await self.fetch(name, call.orders)
            if all(order.done for order in call.orders):
                return
            limit_s = load.limit_s(call.prefill_tokens, call.steps, self.options.call_timeout_s)
            work = self.fleet.engines[name].expand([order.work for order in call.orders], token)
            found: list[Outcome] = await self.fleet.timed(name, work, limit_s)
            self._back(call, found, began, row_seconds)
        except EngineDownError as error:
            self.fleet.mark_down(name, str(error))
            self._failed(call, str(error))
        except EngineFailedError as error:
            self.fleet.on_failure(name, str(error))
            self._failed(call, str(error))
        except Exception as error:  # a fault of ours: whoever waits for these orders must know
            for order in call.orders:
                order.flow.fail(error)
        finally:
            self.on_call(name, False)
            self._end(call)

    def _back(self, call: Call, found: Sequence[Outcome], began: float, row_seconds: float) -> None:
        """The engine answered. row_seconds: its load's when the call began."""
        name, now = call.engine, self.fleet.clock()
        row_seconds = self.fleet.loads[name].row_seconds_until(now) - row_seconds
        concurrent = self.concurrent(name) and now > began
        rows = row_seconds / (now - began) if concurrent else call.rows
        self.fleet.learn(name, found, now - began, rows, self.options.batch_rows, concurrent)
        self._land(call, found, now)

    def _end(self, call: Call) -> None:
        """However the call ended, before it began even: its credits are free."""
        if call.over:
            return
        call.over = True
        if call.late is not None:
            call.late.cancel()
        del self._calls[call.engine][call]
        if (load := self.fleet.loads.get(call.engine)) is not None:
            load.send(-call.rows, self.fleet.clock())
            self.fleet.eased(call.engine)
        for order in call.orders:
            if call.engine in order.at:
                self._unbook(order, call.engine)
            self.on_over(call.engine, order)
        if self.fleet.is_up(call.engine):
            self.poke(call.engine)

    def _land(self, call: Call, found: Sequence[Outcome], now: float) -> None:
        """Hand on what was not answered by another engine before."""
        began = min(order.ready_s for order in call.orders)
        worked = sum(sum(outcome.cost.seconds.values()) for outcome in found)
        queued = max(now - began - worked, 0.0) / len(call.orders)
        for order, outcome in zip(call.orders, found, strict=True):
            placed = order.at[call.engine].placed
            self._unbook(order, call.engine)
            if order.done:
                continue
            order.done = True
            self.counts["hedges_won"] += order.hedged and placed.policy == HEDGE
            for name in [name for name, booking in order.at.items() if not booking.request]:
                self.unqueue(order, name)
            self._cancel_at_engines(order)
            predicted = placed.predicted_hit
            cost = outcome.cost + Cost(
                predicted_hit=predicted,
                available_hit=placed.available,
                mispredicted=abs(predicted - order.branch.whole(outcome.cost.actual_hit)) if outcome.samples else 0,
                seconds={"queue": queued},
            )
            whole = replace(outcome, cost=cost)
            try:
                self._on_landed(order, whole)
                order.flow.land(whole)
            except Exception as error:  # of whoever listens to outcomes
                order.flow.fail(error)

    def _failed(self, call: Call, error: str) -> None:
        """Orders that no other engine works on are tried again, so often as is allowed.

        A call with orders of several waves counts for none: one search's bad branch is no failure of another's.
        """
        again = []
        counted = len({id(order.flow) for order in call.orders}) == 1
        for order in call.orders:
            self._unbook(order, call.engine)
            if order.done:
                continue
            order.again(call.engine, error, counted)
            if order.at:
                continue
            if order.recalled or order.attempts < self.options.attempts:
                self.counts["retries"] += not order.recalled
                again.append(order)
            else:
                self._give_up(order, error)
        self._place_again(again)

    def _give_up(self, order: Order, error: str) -> None:
        order.done = True
        work = order.work
        order.flow.land(Outcome(work.id, work.problem_id, work.node_id, cost=Cost(), error=error))

    def _let_go(self, order: Order) -> None:
        """Nobody needs it any more, and no engine has it."""
        order.done = True
        order.flow.land(Outcome(order.work.id, order.work.problem_id, order.work.node_id))

    def _abandon(self, orders: Iterable[Order]) -> None:
        """Nobody waits for these: those that wait are dropped, engines end the others, and their calls with them."""
        for order in orders:
            order.done = True
            for name in [name for name, booking in order.at.items() if not booking.request]:
                self.unqueue(order, name)
            self._cancel_at_engines(order)

    def _cancel_at_engines(self, order: Order) -> None:
        if self.options.cancels:
            for name, booking in order.at.items():
                if booking.request and self.fleet.reachable(name):
                    self.fleet.tell(self.fleet.engines[name].cancel([booking.request]))

    # -- books -----------------------------------------------------------------------------------------------------
    def check_integrity(self) -> None:
        """Loads and credits are those of the orders that wait and the calls under way, to the row; else AssertionError.

        So nothing is outstanding once there are none.
        """
        for name, load in self.fleet.loads.items():
            calls = self._calls.get(name, {})
            sent = [order for call in calls for order in call.orders if name in order.at]
            booked = [order.at[name] for order in (*self.queues.get(name, ()), *sent)]
            expected = {
                "rows": sum(booking.rows for booking in booked),
                "prefill_tokens": sum(booking.prefill_tokens for booking in booked),
                "calls": len(calls),
                "sent_rows": sum(call.rows for call in calls),
            }
            found = {key: getattr(load, key) for key in expected}
            if found != expected:
                raise AssertionError(f"books of engine {name!r} say {found}, under way are {expected}")
        under_way = {*self.queues, *(name for name, calls in self._calls.items() if calls)}
        if gone := sorted(under_way - self.fleet.loads.keys()):
            raise AssertionError(f"orders are under way on engines that left: {', '.join(gone)}")
