"""Engines that raise, die, hang or are poisoned, behind a dispatcher; an index that does not answer."""

import asyncio
from dataclasses import replace

from actors.dispatcher import Dispatcher, PoolOptions
from actors.handles import EngineDownError, EngineFailedError, IndexDownError, InlineEngine, InlineIndex
from actors.rsbcm import RSBCM
from engine.simulated import SimulatedEngine
from engine.tokenizer import ByteCodec
from search.types import Expansion, Sampling, ScoreRequest

QUICK = PoolOptions(attempts=3, rows_per_engine=2, batch_rows=16)
IMPATIENT = replace(QUICK, call_timeout_s=1.0, patience_s=0.2)


class Shaky(InlineEngine):
    """faults: what the next calls of `expand` or `score` do instead: an exception to raise, or "hang".

    Down until `ready` has been asked `slow` times; `poison`: text in a prompt that raises every time.
    """

    killable = True

    def __init__(self, name, build, index=None, faults=(), slow=0, poison=None):
        super().__init__(name, build, index)
        self.faults = list(faults)
        self.slow = slow
        self.poison = poison
        self.calls, self.restarts, self.readies = [], 0, 0

    async def fault(self):
        fault = self.faults.pop(0) if self.faults else None
        if fault == "hang":
            await asyncio.sleep(600)
        elif fault is not None:
            raise fault

    async def expand(self, orders, token):
        self.calls.append([order.id for order in orders])
        await self.fault()
        if self.poison is not None and any(self.poison in order.id for order in orders):
            raise EngineFailedError("RuntimeError: poisoned")
        return await super().expand(orders, token)

    async def score(self, requests):
        self.calls.append([request.id for request in requests])
        await self.fault()
        if self.poison is not None and any(self.poison in request.id for request in requests):
            raise EngineFailedError("RuntimeError: poisoned")
        return await super().score(requests)

    async def ready(self):
        self.readies += 1
        if self.readies <= self.slow:
            raise EngineDownError("still loading")
        return await super().ready()

    async def restart(self):
        self.restarts += 1
        self._actor = None


class DeafIndex(InlineIndex):
    async def _down(self, *_):
        raise IndexDownError("no answer")

    assign = note_scores = unpin = renew = restore = forget = end_tree = stats = _down


def pool_of(*engines, index=None, options=QUICK, failures=None):
    rsbcm = RSBCM()
    for engine in engines:
        engine._index = rsbcm
    note = (lambda engine, reason: failures.append((engine, reason))) if failures is not None else None
    index = index or InlineIndex(rsbcm)
    caps = frozenset({"score"})
    return Dispatcher(engines, index, ByteCodec(), "simulated", caps, options, note)


def shaky(name="a", **more):
    return Shaky(name, lambda: SimulatedEngine(), **more)


def orders(count, n=2, tag="o"):
    return [
        Expansion(
            f"{tag}{i}", "p", f"r.{i}", (tuple(b"a common prompt"), tuple(f"step {i}\n\n".encode())), n, Sampling()
        )
        for i in range(count)
    ]


def texts(outcomes):
    return [[sample.text for sample in outcome.samples] for outcome in outcomes]


def undisturbed(wave):
    return texts(asyncio.run(pool_of(shaky()).expand(wave)))


DOWN = EngineDownError("the actor died")


def request(number, engine="a", tag="s"):
    return ScoreRequest(f"{tag}{number}", (tuple(b"prompt"), tuple(f"step {number}".encode())), "right?", engine)
