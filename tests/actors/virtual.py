"""Time that passes only while everybody sleeps: a loop, and engines whose calls take their modelled seconds."""

import asyncio
import selectors

from actors.dispatcher import Dispatcher, PoolOptions
from actors.engine_actor import EngineActor
from actors.handles import EngineDownError, InlineIndex
from actors.rsbcm import RSBCM
from engine.base import Branch, stream_key
from engine.text_engine import Latency, TextEngine
from engine.tokenizer import ByteCodec
from search.types import Boundary, Expansion, Sampling


class _Jump(selectors.SelectSelector):
    """Waiting for a timer moves the clock there; nothing outside the loop is waited for."""

    loop = None

    def select(self, timeout=None):
        if timeout is None:
            raise RuntimeError("everybody waits for ever")
        self.loop.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        selector = _Jump()
        super().__init__(selector)
        selector.loop = self
        self.now = 0.0

    def time(self):
        return self.now


def run(main):
    """Result of the coroutine function `main(clock)`, run in virtual time."""
    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main(loop.time))


class StepEngine(TextEngine):
    """Every step is `step` tokens, different for every stream."""

    def __init__(self, step=8, **options):
        super().__init__(fingerprint="steps", **options)
        self.step = step

    def write(self, path, stream):
        text = f"{stream_key(stream) & (1 << 62):020d}{stream & ((1 << 60) - 1):020d}"[-min(self.step, 20) :]
        tokens = tuple((text * (self.step // len(text) + 1))[: self.step].encode())
        return Branch(tokens, "".join(map(chr, tokens)), "step", -1.0, 0.5)

    def judge(self, path, question):
        return 0.5


class VirtualEngine:
    """One call at a time, or, `concurrent`, prefills one by one and rows that decode side by side.

    speed: this engine's in multiples of `latency`'s. delays: extra seconds of the next calls. hang: calls never return.
    hardware: what it says of where it runs.
    """

    killable = True

    def __init__(
        self,
        name,
        rsbcm,
        clock,
        latency,
        *,
        step=8,
        speed=1.0,
        concurrent=False,
        delays=(),
        hardware=("", 1),
        **options,
    ):
        self.name, self.concurrent, self.clock = name, concurrent, clock
        self.speed, self.delays, self.hang, self.dead = speed, list(delays), False, False
        self.latency, self.hardware = latency, hardware
        scaled = Latency(latency.per_call_s / speed, latency.prefill_rate * speed, latency.step_s / speed)
        self.make = lambda: EngineActor(
            name, lambda: StepEngine(step, latency=scaled, **options), rsbcm.apply if rsbcm else None
        )
        self.actor = self.make()
        self.busy = asyncio.Lock()
        self.calls, self.cancelled, self.most_rows, self.rows, self.restarts = [], [], 0, 0, 0

    async def expand(self, orders, token):
        if self.dead:
            raise EngineDownError("the actor died")
        self.calls.append([order.id for order in orders])
        if self.hang:
            await asyncio.sleep(1e9)
        rows = sum(order.n for order in orders)
        self.rows += rows
        self.most_rows = max(self.rows, self.most_rows)
        try:
            async with self.busy:
                found = self.actor.expand(orders, token)
                prefill_s = sum(o.cost.seconds["prefill"] for o in found)
                decode_s = sum(o.cost.seconds["decode"] for o in found)
                decode_s += self.delays.pop(0) if self.delays else 0.0
                await asyncio.sleep(prefill_s if self.concurrent else prefill_s + decode_s)
            if self.concurrent:
                await asyncio.sleep(decode_s)
        finally:
            self.rows -= rows
        if self.dead:
            raise EngineDownError("the actor died")
        return found

    async def score(self, requests):
        return self.actor.score(requests)

    async def release(self, keys):
        self.actor.release(keys)

    async def cancel(self, ids):
        self.cancelled += ids

    async def note_scores(self, items):
        self.actor.note_scores(items)

    async def ready(self):
        if self.dead:
            raise EngineDownError("still dead")
        return 1

    async def restart(self):
        self.restarts += 1
        self.hang, self.actor = False, self.make()

    async def stats(self):
        name, slots = self.hardware
        return {**self.actor.stats(), "hardware": name, "slots": slots}


LATENCY = Latency(per_call_s=0.01, prefill_rate=8000.0, step_s=0.02)


def cluster(clock, count, *, rsbcm=None, names=None, speeds=None, options=None, latency=LATENCY, mover=None, **engine):
    """A dispatcher over virtual engines that share an index."""
    rsbcm = rsbcm or RSBCM()
    names = names or [f"e{i}" for i in range(count)]
    speeds = speeds or [1.0] * count
    engines = [VirtualEngine(n, rsbcm, clock, latency, speed=s, **engine) for n, s in zip(names, speeds, strict=True)]
    capabilities = frozenset({"score", "cancel"})
    options = options or PoolOptions(rows_per_engine=16, patience_s=30.0)
    pool = Dispatcher(
        engines, InlineIndex(rsbcm), ByteCodec(), "steps", capabilities, options, clock=clock, mover=mover
    )
    return pool


def prompt(name, length):
    return tuple((f"{name} " * (length // (len(name) + 1) + 1))[:length].encode())


def order(problem, node, context, n, step, index=0):
    sampling = Sampling(max_tokens=step, boundary=Boundary(delimiter=None, tokens=step))
    return Expansion(f"{problem}/{node}/{index}", problem, node, context, n, sampling, first_sample=index)


async def grow(pool, problem, root, *, beam, branching, depth, step):
    """A beam search without a model: `branching` samples below each of `beam` nodes; survivors by a hash of ids."""
    outcomes, kept = [], []
    wave = [order(problem, "r", (root,), branching * beam, step)]
    for level in range(depth):
        found = await pool.expand(wave)
        outcomes += found
        children = [
            (f"{o.node_id}.{s.index}", (*asked.context, s.token_ids))
            for asked, o in zip(wave, found, strict=True)
            for s in o.samples
        ]
        children.sort(key=lambda child: stream_key(problem, level, child[0]))
        kept.append([name for name, _ in children[:beam]])
        wave = [order(problem, name, context, branching, step) for name, context in children[:beam]]
    await pool.finish(problem, [(root,)])
    return kept, outcomes
