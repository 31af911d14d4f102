"""An engine on a virtual device: the real KV tree and events; when things end is computed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from actors.handles import EngineDownError, EngineFailedError, EngineHandle
from actors.path_keys import PathKeys
from actors.publisher import COALESCE_S, Publisher
from actors.rsbcm import RSBCM
from bench.scale.device import Device, Speeds, Work
from bench.scale.world import World
from engine.base import flat
from engine.kv_tree import KVTree
from engine.text_engine import CountedKV
from search.ports import Context
from search.types import Cost, Expansion, Outcome, Score, ScoreRequest


class Computed:
    """Which prefixes some engine has computed, for what placement could have reused at most."""

    def __init__(self, fingerprint: str) -> None:
        self._of = PathKeys(fingerprint).of
        self._keys: set[bytes] = set()

    def note(self, context: Context) -> None:
        self._keys.update(self._of(context))

    def available(self, context: Context) -> int:
        """Tokens of the longest computed prefix that ends where a segment ends."""
        ends = [end - 1 for end in accumulate(map(len, context))]
        keys = self._of(context)
        return max((end for key, end in zip(keys, ends, strict=True) if key in self._keys), default=0)


@dataclass(slots=True)
class Reuse:
    """Tokens of paths over all expansions. available: computed by some engine before the order came. root_copies:
    tokens of root prefixes that were prefilled though another engine had computed them."""

    available: int = 0
    delivered: int = 0
    root_copies: int = 0
    prefilled: int = 0
    moved: int = 0


class VirtualTransport:
    """KV over the target's link."""

    async def move(self, source: EngineHandle, target: EngineHandle, key: bytes, start: int) -> int:
        if not isinstance(source, VirtualEngine) or not isinstance(target, VirtualEngine):
            raise TypeError("virtual engines send KV to each other")
        return await target.take(source, key, start)


class VirtualEngine:
    """`actors.handles.EngineHandle`. tree: builds its empty KV tree. computed: by the whole cluster."""

    killable = True

    def __init__(
        self, name: str, speeds: Speeds, world: World, index: RSBCM, tree: Callable[[], KVTree], computed: Computed
    ) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._speeds, self._world, self._index = speeds, world, index
        self._empty_tree, self._computed = tree, computed
        self.reuse = Reuse()
        self.expansions = self.incarnation = 0
        self.alive = True
        self._busy_before_s = 0.0
        self._waiting: set[asyncio.Future[None]] = set()
        self._begin()

    @property
    def busy_s(self) -> float:
        """Seconds of work, killed predecessors' included."""
        return self._busy_before_s + self.device.busy_s

    def _begin(self) -> None:
        self.tree = self._empty_tree()
        self.device = Device(self._loop, self._speeds)
        self.incarnation += 1
        self._publisher = Publisher(self._name, self.incarnation, self._index.apply, clock=self._loop.time)
        self._publishing: asyncio.TimerHandle | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def concurrent(self) -> bool:
        return True

    async def expand(self, orders: Sequence[Expansion], token: str) -> list[Outcome]:
        await self.message()
        ends: dict[str, tuple[float, float]] = {}
        all_done: asyncio.Future[None] = self._loop.create_future()

        def one_done(order_id: str) -> Callable[[float, float], None]:
            def done(prefill_s: float, decode_s: float) -> None:
                ends[order_id] = (prefill_s, decode_s)
                if len(ends) == len(orders) and not all_done.done():
                    all_done.set_result(None)

            return done

        grown = {order.id: self._world.samples(order) for order in orders}
        costs = {}
        for order in orders:
            costs[order.id] = cost = self._prefill(order)
            lengths = [len(sample.token_ids) for sample in grown[order.id]]
            self.device.submit(Work(cost.prefilled, lengths, one_done(order.id)))
        self._waiting.add(all_done)
        try:
            await all_done
        finally:
            self._waiting.discard(all_done)
        for order in orders:
            path = flat(order.context)
            for sample in grown[order.id]:
                self._hold((*path, *sample.token_ids[:-1]))
                self._computed.note((*order.context, sample.token_ids))
        self.tree.enforce_budget()
        self._announce()
        self.expansions += len(orders)
        await self.message()
        return [self._outcome(order, grown[order.id], costs[order.id], ends[order.id]) for order in orders]

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        raise NotImplementedError("the simulation's verifier needs no engine")

    async def release(self, keys: Sequence[bytes]) -> None:
        if self.alive:
            for key in keys:
                self.tree.release(key)
            self._announce()

    async def cancel(self, ids: Sequence[str]) -> None:
        return None

    async def note_scores(self, items: Sequence[tuple[bytes, float, int]]) -> None:
        if self.alive:
            self.tree.note_scores(items)

    async def take(self, source: VirtualEngine, key: bytes, start: int) -> int:
        """Get KV from another engine; tokens of the path that are held then."""
        await source.message()
        end = source.tree.find(key)
        if end is None:
            raise EngineFailedError(f"{source.name} does not hold it")
        path = end.path()
        tokens = [token for segment in path for token in segment.tokens]
        await asyncio.sleep((len(tokens) - start) / self._speeds.link_rate)
        await self.message()
        if self.tree.held(tokens) >= start:
            for segment in path:
                self._hold(tokens[: segment.end])
            self.reuse.moved += len(tokens) - start
        self._announce()
        return self.tree.held(tokens)

    async def ready(self) -> int:
        await self.message()
        return self.incarnation

    async def restart(self) -> None:
        self.kill()
        self.revive()

    async def stats(self) -> dict[str, Any]:
        return {"name": self.name, "expansions": self.expansions, "busy_s": self.busy_s}

    def kill(self) -> None:
        """Everything under way is lost, and all KV."""
        self.alive = False
        self.device.stop()
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(EngineDownError(f"{self.name} was killed"))
        self._waiting.clear()

    def revive(self) -> None:
        self._busy_before_s = self.busy_s
        self._begin()
        self.alive = True

    async def message(self) -> None:
        """The time that a message takes; nobody may be there to get it."""
        await asyncio.sleep(self._speeds.rpc_s)
        if not self.alive:
            raise EngineDownError(f"{self.name} does not answer")

    # -- parts -----------------------------------------------------------------------------------------------------
    def _prefill(self, order: Expansion) -> Cost:
        path = flat(order.context)[:-1]
        held = self.tree.reach(path).end
        self._hold(path)
        prefilled = len(path) - held
        available = self._computed.available(order.context)
        root = min(len(order.context[0]), available)
        self.reuse.available += available
        self.reuse.delivered += min(held, available)
        self.reuse.root_copies += max(root - held, 0)
        self.reuse.prefilled += prefilled
        self._computed.note(order.context)
        reused = order.n * len(path) - prefilled
        return Cost(prefilled=prefilled, reused={"exact": reused}, actual_hit=held)

    def _hold(self, tokens: Sequence[int]) -> None:
        self.tree.store(tokens, lambda start, stop: CountedKV(stop - start, 1), 1)

    def _outcome(self, order: Expansion, samples: Any, cost: Cost, ends: tuple[float, float]) -> Outcome:
        generated = sum(len(sample.token_ids) for sample in samples)
        seconds = {"prefill": ends[0], "decode": ends[1]}
        return Outcome(
            order.id,
            order.problem_id,
            order.node_id,
            samples,
            self.name,
            cost + Cost(generated=generated, seconds=seconds),
        )

    def _announce(self) -> None:
        """Changes go out together, a little later."""
        if self._publishing is None:
            self._publishing = self._loop.call_later(COALESCE_S, self._publish)

    def _publish(self) -> None:
        self._publishing = None
        if self.alive:
            self._publisher.note(self.tree.events())
            self._publisher.flush()
