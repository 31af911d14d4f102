"""One run in virtual time: engines, index and dispatcher, with searches or a trace on them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean

from actors.dispatcher import Dispatcher, PoolOptions
from actors.handles import InlineIndex
from actors.rsbcm import RSBCM
from actors.transfer import Mover
from bench.scale.clock import run_virtually
from bench.scale.device import Speeds
from bench.scale.engine import Computed, VirtualEngine, VirtualTransport
from bench.scale.regimes import Regime
from bench.scale.replay import replay
from bench.scale.trace import Request
from bench.scale.world import FreeVerifier, PromptCodec, World
from engine.base import stream_key
from engine.kv_tree import KVTree
from search.driver import TreeSearch
from search.strategies import registry
from search.types import Problem, Sampling

_FINGERPRINT = "virtual"
_FOREVER_S = 1e6


@dataclass(frozen=True, slots=True)
class Hardware:
    """engines: how many; spread: they are 1 to `spread` times as fast as the slowest. capacity: tokens of KV on each.

    failures: (seconds, engine) when one dies; it is back after down_s with nothing held.
    """

    engines: int = 64
    speeds: Speeds = field(default_factory=Speeds)
    spread: float = 1.0
    capacity: int | None = None
    rows_per_engine: int = 16
    failures: tuple[tuple[float, int], ...] = ()
    down_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Run:
    """What one run showed. hit_rate: of the path tokens that some engine held when an order came, the share that was
    not prefilled again; the first copy of a root prefix on an engine is left out, as in placement, and counted as a
    miss in hit_rate_all. busy: share of the makespan that the devices worked. real_s: seconds that this machine took.
    """

    makespan_s: float
    hit_rate: float
    hit_rate_all: float
    expansions: int
    prefilled: int
    moved: int
    busy: float
    most_busy_s: float
    real_s: float
    answers: tuple[str | None, ...] = ()


Load = Callable[[Dispatcher], Awaitable[tuple[int, Sequence[str | None]]]]
"""Puts work on a pool; returns how many expansions it took, and the answers."""


def search_trees(regime: Regime, policy: str, hardware: Hardware, seed: int) -> Run:
    """All trees of a regime, by the real driver and the strategy `tot`."""
    world = World(regime.step)
    strategy = registry.create("tot", b=regime.b, k=regime.k, max_depth=world.longest)

    async def load(pool: Dispatcher) -> tuple[int, Sequence[str | None]]:
        search = TreeSearch(
            pool,
            strategy,
            FreeVerifier(),
            sampling=Sampling(max_tokens=2 * regime.step),
            seed=seed,
            clock=asyncio.get_running_loop().time,
            merge=False,
        )
        places = asyncio.Semaphore(regime.in_flight or regime.trees)

        async def one(i: int) -> tuple[int, str | None]:
            async with places:
                result = await search.run(Problem(f"problem {i}", id=f"p{i}", kind="number"))
            return len(result.tree.told), result.answer

        done = await asyncio.gather(*(one(i) for i in range(regime.trees)))
        return sum(count for count, _ in done), [answer for _, answer in done]

    codec = PromptCodec(regime.prompt, regime.shared)
    return run_virtually(_run(load, world, codec, policy, hardware, seed))


def serve_trace(requests: Sequence[Request], policy: str, hardware: Hardware, seed: int) -> Run:
    """All requests of a trace."""

    async def load(pool: Dispatcher) -> tuple[int, Sequence[str | None]]:
        await replay(pool, requests)
        return len(requests), ()

    world = World(1, outputs={request.id: request.output for request in requests})
    return run_virtually(_run(load, world, PromptCodec(1), policy, hardware, seed))


async def _run(load: Load, world: World, codec: PromptCodec, policy: str, hardware: Hardware, seed: int) -> Run:
    loop = asyncio.get_running_loop()
    index = RSBCM(clock=loop.time)
    factors = [_factor(hardware.spread, seed, i) for i in range(hardware.engines)]
    computed = Computed(_FINGERPRINT)
    tree = partial(KVTree, _FINGERPRINT, hardware.capacity)
    fleet = [
        VirtualEngine(f"engine-{i:04}", hardware.speeds.times(factor), world, index, tree, computed)
        for i, factor in enumerate(factors)
    ]
    options = PoolOptions(
        rows_per_engine=hardware.rows_per_engine,
        batch_rows=hardware.speeds.max_rows,
        call_timeout_s=_FOREVER_S,
        placement=policy,
        seed=seed,
    )
    rate = hardware.speeds.link_rate
    mover = Mover(VirtualTransport() if rate else None, rate, loop.time)
    pool = Dispatcher(
        fleet, InlineIndex(index), codec, _FINGERPRINT, frozenset(), options, clock=loop.time, mover=mover
    )
    for at_s, i in hardware.failures:
        loop.call_at(at_s, fleet[i].kill)
        loop.call_at(at_s + hardware.down_s, fleet[i].revive)
    began = time.perf_counter()
    expansions, answers = await load(pool)
    makespan = loop.time()
    pool.close()
    return _summary(fleet, makespan, expansions, tuple(answers), time.perf_counter() - began)


def _summary(
    fleet: Sequence[VirtualEngine], makespan_s: float, expansions: int, answers: tuple[str | None, ...], real_s: float
) -> Run:
    available = sum(engine.reuse.available for engine in fleet)
    delivered = sum(engine.reuse.delivered for engine in fleet)
    copies = sum(engine.reuse.root_copies for engine in fleet)
    return Run(
        makespan_s=makespan_s,
        hit_rate=delivered / max(available - copies, 1),
        hit_rate_all=delivered / max(available, 1),
        expansions=expansions,
        prefilled=sum(engine.reuse.prefilled for engine in fleet),
        moved=sum(engine.reuse.moved for engine in fleet),
        busy=fmean(engine.busy_s for engine in fleet) / makespan_s,
        most_busy_s=max(engine.busy_s for engine in fleet),
        real_s=real_s,
        answers=answers,
    )


def _factor(spread: float, seed: int, engine: int) -> float:
    """How many times as fast as the slowest an engine is."""
    return 1.0 + (spread - 1.0) * (stream_key("speed", seed, engine) % 1001) / 1000
