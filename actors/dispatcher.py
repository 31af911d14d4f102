"""Dispatcher: the driver's Pool. Places a wave, calls engines side by side, re-dispatches what a failure lost."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

from actors.engine_actor import request_id
from actors.fleet import Fleet
from actors.flight import DispatchedFlight
from actors.handles import EngineDownError, EngineFailedError, EngineHandle, IndexDownError, IndexHandle
from actors.local_view import LocalView
from actors.placement import Branch, Placed, home, place
from actors.rsbcm import Assignment, Scored
from engine.base import Codec, flat, path_keys, without_repeated_end
from engine.sketch import sketch
from search.ports import Context, Flight, Keep, Message
from search.types import Cost, Expansion, Outcome, Score, ScoreRequest

T = TypeVar("T", Expansion, ScoreRequest)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """attempts: how often one order is tried in all. rows_per_engine: sample rows that fill an engine.

    call_timeout_s: an engine that is silent for longer counts as down. patience_s: wait for a first engine to answer.
    near_roots: whether a new tree goes to an engine that holds a near root (of use where ASKS tiers approximate).
    """

    attempts: int = 3
    rows_per_engine: int = 2
    call_timeout_s: float = 600.0
    patience_s: float = 300.0
    near_roots: bool = False


@dataclass(slots=True)
class _Item(Generic[T]):
    """An order or a score request under way, with its history."""

    work: T
    attempts: int = 0
    alone: bool = False
    avoid: set[str] = field(default_factory=set)
    error: str = ""
    predicted: int = 0

    def again(self, name: str, error: str) -> None:
        """What failed goes alone next time, so that a bad branch fails by itself, and elsewhere if it can."""
        self.attempts += 1
        self.alone = True
        self.avoid.add(name)
        self.error = error


Group = tuple[str, list[_Item[T]]]


class Dispatcher:
    """engines may live anywhere; `index` is asked once a wave and replaced by a local view while it is down."""

    def __init__(
        self,
        engines: Sequence[EngineHandle],
        index: IndexHandle,
        codec: Codec,
        fingerprint: str,
        capabilities: frozenset[str],
        options: PoolOptions | None = None,
        on_failure: Callable[[str, str], None] | None = None,
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
        self._fingerprint = fingerprint
        self._local = LocalView()
        self._sent: set[asyncio.Task[None]] = set()
        self._working: dict[str, set[str]] = {engine.name: set() for engine in engines}
        self._tokens = (f"{uuid.uuid4().hex}-{i}" for i in itertools.count())
        self.fleet = Fleet(engines, self.on_failure, self._forget)

    @property
    def engines(self) -> Mapping[str, EngineHandle]:
        return self.fleet.engines

    # -- Pool ------------------------------------------------------------------------------------------------------
    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple(self.codec.encode(self.codec.render(messages)))

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

        await self._expand([_Item(order) for order in wave], next(self._tokens), deliver)
        return [outcomes[order.id] for order in wave]

    def launch(self, wave: Sequence[Expansion]) -> Flight:
        """One placement for the wave, one call an order."""
        token = next(self._tokens)
        items = [_Item(order, alone=True) for order in wave]
        return DispatchedFlight(len(wave), partial(self._expand, items, token), partial(self._recall, token))

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        """Each request goes to the engine that grew its branch, or to another one if that is down."""
        scores: dict[str, Score] = {}
        call = partial(self._score_on, scores)
        for item in await self._try([_Item(request) for request in requests], self._by_holder, call):
            scores[item.work.id] = Score(item.work.id, None, error=item.error)
        return [scores[request.id] for request in requests]

    async def note_scores(self, scores: Sequence[tuple[Context, float, int]]) -> None:
        """The index is told, and every engine that is up, which evicts by it; the engines are not waited for."""
        items = [Scored(self._keys(context)[-1], score, depth) for context, score, depth in scores]
        await self.fleet.quietly(self.index.note_scores(items))
        told = [(item.key, item.score, item.depth) for item in items]
        await self._send(lambda engine: engine.note_scores(told))

    async def finish(self, problem_id: str, contexts: Sequence[Context]) -> None:
        """Free the whole tree and its place at the index."""
        await self.release(contexts)
        await self.fleet.quietly(self.index.end_tree(problem_id))

    async def release(self, contexts: Sequence[Context]) -> None:
        """Free the branches on every engine that is up; the calls are sent, not waited for."""
        keys = [self._keys(context)[-1] for context in contexts]
        await self._send(lambda engine: engine.release(keys))

    async def stats(self) -> dict[str, Mapping[str, Any]]:
        """Counters of every engine; of one that is down, its state only."""
        rows: dict[str, Mapping[str, Any]] = {}
        up = self.fleet.up()
        for name, engine in self.engines.items():
            try:
                rows[name] = await engine.stats() if name in up else {"name": name, "state": "down"}
            except (EngineDownError, EngineFailedError):
                rows[name] = {"name": name, "state": "down"}
        return rows

    def close(self) -> None:
        self.fleet.close()
        for task in self._sent:
            task.cancel()

    async def _send(self, call: Callable[[EngineHandle], Coroutine[Any, Any, None]]) -> None:
        """Call every engine that is up, without waiting for an answer."""
        for name in self.fleet.up():
            self._spawn(call(self.engines[name]))
        await asyncio.sleep(0)

    def _spawn(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self.fleet.quietly(call))
        self._sent.add(task)
        task.add_done_callback(self._sent.discard)

    async def _try(
        self,
        pending: list[_Item[T]],
        placed: Callable[[list[_Item[T]]], Awaitable[list[Group[T]]]],
        call: Callable[[str, list[_Item[T]]], Awaitable[str]],
    ) -> list[_Item[T]]:
        """Place and call, again and again, until nothing is left; returns the items that are given up.

        call: an empty string once the group is answered, else why it is not.
        """
        given_up = []
        while pending:
            groups: list[Group[T]] = []
            if await self.fleet.some_up(self.options.patience_s):
                groups = await placed(pending)
            else:
                given_up += [replace(item, error=item.error or "no engine answers") for item in pending]
            errors = await asyncio.gather(*(call(name, group) for name, group in groups))
            pending = []
            for (name, group), error in zip(groups, errors, strict=True):
                for item in group if error else ():
                    item.again(name, error)
                    (pending if item.attempts < self.options.attempts else given_up).append(item)
        return given_up

    async def _expand(self, items: list[_Item[Expansion]], token: str, deliver: Callable[[Outcome], None]) -> None:
        for item in await self._try(items, self._placed, partial(self._expand_on, token, deliver)):
            deliver(Outcome(item.work.id, item.work.problem_id, item.work.node_id, cost=Cost(), error=item.error))

    def _recall(self, token: str, ids: Collection[str]) -> None:
        """Tell the engines that work on these orders; an order that is not sent yet runs to its end."""
        for name, requests in self._working.items():
            known = [request for id in ids if (request := request_id(token, id)) in requests]
            if known:
                self._spawn(self.engines[name].cancel(known))

    # -- placing ---------------------------------------------------------------------------------------------------
    async def _placed(self, pending: list[_Item[Expansion]]) -> list[Group[Expansion]]:
        """Groups of orders that go out as one call each."""
        branches = tuple(self._branch(item.work) for item in pending)
        first = pending[0].work
        signature = sketch(first.context[0]) if self.options.near_roots and len(first.context) == 1 else b""
        decisions = await self._assign(first.problem_id, branches, signature)
        names = []
        for item, decision in zip(pending, decisions, strict=True):
            names.append(self.fleet.pick(decision.actor, item.avoid))
            item.predicted = decision.predicted_hit if names[-1] == decision.actor else 0
        return _grouped(pending, names)

    async def _by_holder(self, pending: list[_Item[ScoreRequest]]) -> list[Group[ScoreRequest]]:
        return _grouped(pending, [self.fleet.pick(item.work.engine, item.avoid) for item in pending])

    async def _assign(self, tree: str, branches: tuple[Branch, ...], signature: bytes = b"") -> list[Placed]:
        loads = self.fleet.views()
        wave = Assignment(tree, branches, loads, self.options.rows_per_engine, signature)
        try:
            return await self.index.assign(wave)
        except IndexDownError as error:
            self.on_failure("index", str(error))
            former = self._local.holders(branches)
            homes = home(sum(b.rows for b in branches), loads, wave.rows_per_engine, former)
            return place(branches, loads, self._local.held, homes, rows_per_engine=wave.rows_per_engine)

    def _branch(self, order: Expansion) -> Branch:
        ends, total = [], 0
        for segment in order.context:
            total += len(segment)
            ends.append(total - 1)
        return Branch(order.id, tuple(self._keys(order.context)), tuple(ends), order.n, order.sampling.max_tokens // 2)

    def _keys(self, context: Context) -> list[bytes]:
        return path_keys(self._fingerprint, context)

    # -- calling ---------------------------------------------------------------------------------------------------
    async def _expand_on(
        self, token: str, deliver: Callable[[Outcome], None], name: str, group: list[_Item[Expansion]]
    ) -> str:
        load = self.fleet.loads[name]
        rows = sum(item.work.n for item in group)
        prefill = sum(max(sum(map(len, i.work.context)) - i.predicted, 0) for i in group)
        load.rows += rows
        load.prefill_tokens += prefill
        began = time.monotonic()
        requests = {request_id(token, item.work.id) for item in group}
        self._working[name] |= requests
        try:
            found = await self._on(name, self.engines[name].expand([item.work for item in group], token))
        finally:
            load.rows -= rows
            load.prefill_tokens -= prefill
            self._working[name] -= requests
        if isinstance(found, str):
            return found
        load.learn(found)
        queued = _queued(time.monotonic() - began, found)
        for item, outcome in zip(group, found, strict=True):
            for sample in outcome.samples:
                self._local.note(outcome.engine, self._keys((*item.work.context, sample.token_ids)))
            cost = outcome.cost + Cost(predicted_hit=item.predicted, seconds={"queue": queued})
            deliver(replace(outcome, cost=cost))
        return ""

    async def _score_on(self, scores: dict[str, Score], name: str, group: list[_Item[ScoreRequest]]) -> str:
        found = await self._on(name, self.engines[name].score([item.work for item in group]))
        if isinstance(found, str):
            return found
        scores.update((score.id, score) for score in found)
        return ""

    async def _on(self, name: str, call: Coroutine[Any, Any, list[R]]) -> list[R] | str:
        """What the engine returns, or why it does not."""
        self.on_call(name, True)
        try:
            found: list[R] = await self.fleet.timed(name, call, self.options.call_timeout_s)
            return found
        except EngineDownError as error:
            self.fleet.mark_down(name, str(error))
            return str(error)
        except EngineFailedError as error:
            self.on_failure(name, str(error))
            return str(error)
        finally:
            self.on_call(name, False)

    async def _forget(self, name: str) -> None:
        """An engine went down, and with it all it held."""
        self._local.forget(name)
        await self.fleet.quietly(self.index.forget(name))


def _queued(call_s: float, outcomes: Sequence[Outcome]) -> float:
    """Each order's share of the seconds of a call in which the engine did not work for it: on the way, or waiting."""
    worked = sum(sum(outcome.cost.seconds.values()) for outcome in outcomes)
    return max(call_s - worked, 0.0) / max(len(outcomes), 1)


def _grouped(pending: Sequence[_Item[T]], names: Sequence[str]) -> list[Group[T]]:
    """By engine; an item that goes alone is a group of its own."""
    groups: dict[tuple[str, str], list[_Item[T]]] = defaultdict(list)
    for item, name in zip(pending, names, strict=True):
        groups[name, item.work.id if item.alone else ""].append(item)
    return [(name, group) for (name, _), group in groups.items()]
