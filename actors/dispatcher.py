"""Dispatcher: the driver's Pool. Places a wave, calls engines side by side, re-dispatches what a failure lost."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from actors.handles import EngineDownError, EngineFailedError, EngineHandle, IndexDownError, IndexHandle
from actors.placement import Branch, Placed, home, place
from actors.rates import EngineLoad
from actors.rsbcm import Assignment, Scored
from engine.base import Codec, path_keys
from search.ports import Context, Message
from search.types import Cost, Expansion, Outcome, Score, ScoreRequest


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """attempts: how often one order is tried in all. rows_per_engine: sample rows that fill an engine.

    call_timeout_s: an engine that is silent for longer counts as down. patience_s: wait for a first engine to answer.
    """

    attempts: int = 3
    rows_per_engine: int = 2
    call_timeout_s: float = 600.0
    patience_s: float = 300.0


@dataclass(slots=True)
class _Order:
    """An expansion under way with its history."""

    order: Expansion
    attempts: int = 0
    alone: bool = False
    avoid: set[str] = field(default_factory=set)
    error: str = ""
    predicted: int = 0


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
        self.engines = {engine.name: engine for engine in engines}
        self.index = index
        self.codec = codec
        self.capabilities = capabilities
        self.options = options or PoolOptions()
        self.on_failure = on_failure or (lambda engine, reason: None)
        self._fingerprint = fingerprint
        self._loads = {name: EngineLoad() for name in self.engines}
        self._down: dict[str, asyncio.Task[None]] = {}
        self._grown_on: dict[bytes, str] = {}
        self._tokens = (f"{uuid.uuid4().hex}-{i}" for i in itertools.count())

    # -- Pool ------------------------------------------------------------------------------------------------------
    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple(self.codec.encode(self.codec.render(messages)))

    def question(self, text: str) -> str:
        return self.codec.next_turn(text)

    async def expand(self, wave: Sequence[Expansion]) -> list[Outcome]:
        """One outcome per order, in order. An order fails only after `attempts` tries."""
        token = next(self._tokens)
        outcomes: dict[str, Outcome] = {}
        pending = [_Order(order) for order in wave]
        while pending:
            groups = await self._placed(pending)
            lost = await asyncio.gather(*(self._call(name, g, token, outcomes) for name, g in groups))
            pending = [item for group in lost for item in group]
            for item in [i for i in pending if i.attempts >= self.options.attempts]:
                outcomes[item.order.id] = _failed(item)
            pending = [item for item in pending if item.order.id not in outcomes]
        return [outcomes[order.id] for order in wave]

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        """Each request goes to the engine that grew its branch, or to another one if that is down."""
        scores: dict[str, Score] = {}
        pending = list(requests)
        error = ""
        for _ in range(self.options.attempts):
            if not pending:
                break
            if not await self._some_engine():
                error = error or "no engine answers"
                break
            groups: dict[str, list[ScoreRequest]] = defaultdict(list)
            for request in pending:
                groups[self._holder(request)].append(request)
            answers = await asyncio.gather(*(self._score_on(name, group) for name, group in groups.items()))
            scores.update({s.id: s for answer, _ in answers for s in answer})
            error = next((reason for _, reason in answers if reason), error)
            pending = [request for request in pending if request.id not in scores]
        for request in pending:
            scores[request.id] = Score(request.id, None, error=error)
        return [scores[request.id] for request in requests]

    async def note_scores(self, scores: Sequence[tuple[Context, float, int]]) -> None:
        items = [Scored(self._keys(context)[-1], score, depth) for context, score, depth in scores]
        await self._quietly(self.index.note_scores(items))

    async def release(self, contexts: Sequence[Context]) -> None:
        """Free the branches on every engine that is up; nothing waits for engines that are not."""
        keys = [self._keys(context)[-1] for context in contexts]
        up = [engine for name, engine in self.engines.items() if name not in self._down]
        await asyncio.gather(*(self._quietly(engine.release(keys)) for engine in up))

    async def stats(self) -> dict[str, Mapping[str, Any]]:
        """Counters of every engine that is up, and of the index."""
        rows: dict[str, Mapping[str, Any]] = {}
        for name, engine in self.engines.items():
            try:
                rows[name] = {"name": name, "state": "down"} if name in self._down else await engine.stats()
            except (EngineDownError, EngineFailedError):
                rows[name] = {"name": name, "state": "down"}
        return rows

    def close(self) -> None:
        for task in self._down.values():
            task.cancel()

    # -- placing ---------------------------------------------------------------------------------------------------
    async def _placed(self, pending: Sequence[_Order]) -> list[tuple[str, list[_Order]]]:
        """Groups of orders that go out as one call each; no engine in time is a failure of every order."""
        if not await self._some_engine():
            for item in pending:
                item.attempts, item.error = self.options.attempts, item.error or "no engine answers"
            return [("", list(pending))]
        branches = tuple(self._branch(item.order) for item in pending)
        decisions = await self._assign(pending[0].order.problem_id, branches)
        groups: dict[tuple[str, str], list[_Order]] = defaultdict(list)
        for item, decision in zip(pending, decisions, strict=True):
            name = self._elsewhere(item, decision.actor)
            item.predicted = decision.predicted_hit if name == decision.actor else 0
            groups[name, item.order.id if item.alone else ""].append(item)
        return [(name, group) for (name, _), group in groups.items()]

    async def _assign(self, tree: str, branches: tuple[Branch, ...]) -> list[Placed]:
        loads = {name: load.view() for name, load in self._loads.items() if name not in self._down}
        wave = Assignment(tree, branches, loads, self.options.rows_per_engine)
        try:
            return await self.index.assign(wave)
        except IndexDownError as error:
            self.on_failure("index", str(error))
            homes = home(sum(b.rows for b in branches), loads, wave.rows_per_engine)
            return place(branches, loads, self._held_locally, homes, rows_per_engine=wave.rows_per_engine)

    def _held_locally(self, actor: str, branch: Branch) -> int:
        ends = (e for k, e in zip(branch.keys, branch.ends, strict=True) if self._grown_on.get(k) == actor)
        return max(ends, default=0)

    def _elsewhere(self, item: _Order, choice: str) -> str:
        """`choice`, or the least loaded engine that has not failed this order yet."""
        up = [name for name in self.engines if name not in self._down]
        if choice in up and choice not in item.avoid:
            return choice
        fresh = [name for name in up if name not in item.avoid] or up
        return min(fresh, key=lambda name: (self._loads[name].rows, name))

    def _branch(self, order: Expansion) -> Branch:
        ends, total = [], 0
        for segment in order.context:
            total += len(segment)
            ends.append(total - 1)
        return Branch(order.id, tuple(self._keys(order.context)), tuple(ends), order.n, order.sampling.max_tokens // 2)

    def _keys(self, context: Context) -> list[bytes]:
        return path_keys(self._fingerprint, context)

    def _holder(self, request: ScoreRequest) -> str:
        up = [name for name in self.engines if name not in self._down]
        return request.engine if request.engine in up else min(up, key=lambda name: (self._loads[name].rows, name))

    # -- calling ---------------------------------------------------------------------------------------------------
    async def _call(self, name: str, group: list[_Order], token: str, outcomes: dict[str, Outcome]) -> list[_Order]:
        """Run a group on one engine; returns the orders that have to be tried again."""
        if not name:
            return group
        load = self._loads[name]
        rows = sum(item.order.n for item in group)
        prefill = sum(max(sum(map(len, i.order.context)) - i.predicted, 0) for i in group)
        load.rows += rows
        load.prefill_tokens += prefill
        try:
            orders = [item.order for item in group]
            found = await self._timed(name, self.engines[name].expand(orders, token))
        except EngineDownError as error:
            self._mark_down(name, str(error))
            return [self._again(item, name, str(error)) for item in group]
        except EngineFailedError as error:
            self.on_failure(name, str(error))
            return [self._again(item, name, str(error)) for item in group]
        finally:
            load.rows -= rows
            load.prefill_tokens -= prefill
        load.learn(found)
        for item, outcome in zip(group, found, strict=True):
            self._note(item, outcome)
            cost = replace(outcome.cost, predicted_hit=item.predicted)
            outcomes[item.order.id] = replace(outcome, cost=cost)
        return []

    def _again(self, item: _Order, name: str, error: str) -> _Order:
        """A failed order goes alone next time, so that a bad branch fails by itself, and elsewhere if it can."""
        item.attempts += 1
        item.alone = True
        item.avoid.add(name)
        item.error = error
        return item

    def _note(self, item: _Order, outcome: Outcome) -> None:
        """Remember who grew what, for placement while the index is down."""
        for sample in outcome.samples:
            self._grown_on[self._keys((*item.order.context, sample.token_ids))[-1]] = outcome.engine

    async def _score_on(self, name: str, group: Sequence[ScoreRequest]) -> tuple[list[Score], str]:
        try:
            return await self._timed(name, self.engines[name].score(group)), ""
        except EngineDownError as error:
            self._mark_down(name, str(error))
            return [], str(error)
        except EngineFailedError as error:
            self.on_failure(name, str(error))
            return [], str(error)

    async def _timed(self, name: str, call: Coroutine[Any, Any, Any]) -> Any:
        """Await a call; an engine that is silent for too long is killed and counts as down."""
        try:
            return await asyncio.wait_for(call, self.options.call_timeout_s)
        except TimeoutError:
            await self._quietly(self.engines[name].restart())
            raise EngineDownError(f"no answer in {self.options.call_timeout_s:.0f} s") from None

    async def _quietly(self, call: Coroutine[Any, Any, None]) -> None:
        """For calls whose loss costs time only."""
        try:
            await call
        except (EngineDownError, EngineFailedError, IndexDownError) as error:
            self.on_failure("pool", str(error))

    # -- engines that went down ------------------------------------------------------------------------------------
    def _mark_down(self, name: str, reason: str) -> None:
        if name in self._down:
            return
        self.on_failure(name, reason)
        self._down[name] = asyncio.get_running_loop().create_task(self._revive(name))

    async def _revive(self, name: str) -> None:
        """Wait for the restarted engine; meanwhile nothing is placed on it."""
        await self._quietly(self.index.forget(name))
        while True:
            try:
                await self.engines[name].ready()
                break
            except (EngineDownError, EngineFailedError):
                await asyncio.sleep(1.0)
        self._down.pop(name, None)

    async def _some_engine(self) -> bool:
        """True once an engine is up, waiting for restarts if need be."""
        if len(self._down) < len(self.engines):
            return True
        tasks = list(self._down.values())
        done, _ = await asyncio.wait(tasks, timeout=self.options.patience_s, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)


def _failed(item: _Order) -> Outcome:
    order = item.order
    return Outcome(order.id, order.problem_id, order.node_id, cost=Cost(), error=item.error)
