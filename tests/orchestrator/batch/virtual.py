"""A batch job in virtual time: what a busy machine adds to a call does not count."""

import asyncio
from pathlib import Path

from actors.dispatcher import Dispatcher, PoolOptions
from actors.handles import InlineEngine, InlineIndex
from actors.rsbcm import RSBCM
from bench.scale.clock import run_virtually
from engine.simulated import SimulatedEngine
from engine.text_engine import Latency
from orchestrator import Orchestrator
from orchestrator.batch.job import Job, JobOptions
from orchestrator.batch.stop import Stop
from orchestrator.batch.summary import BatchSummary
from tests.orchestrator.batch.jobs import INLINE


class PacedEngine(InlineEngine):
    """One call at a time, each of which takes the seconds that its latency says."""

    def __init__(self, name: str, latency: Latency, index: RSBCM, depth: int) -> None:
        self._seconds: list[float] = []
        self._one_call = asyncio.Lock()
        super().__init__(name, lambda: SimulatedEngine(depth=depth, latency=latency, sleep=self._seconds.append), index)

    async def _work(self, call):
        async with self._one_call:
            done = await super()._work(call)
            await asyncio.sleep(sum(self._seconds))
            self._seconds.clear()
            return done


def run(
    rows: Path, out: Path, strategy: str, *, engines: int, concurrency: int, latency: Latency, depth: int, **options
) -> BatchSummary:
    async def job() -> BatchSummary:
        clock, index = asyncio.get_running_loop().time, RSBCM()
        fleet = [PacedEngine(f"engine-{i}", latency, index, depth) for i in range(engines)]
        with Orchestrator(**INLINE, engines=engines, concurrency=concurrency) as orchestrator:
            spec = orchestrator.spec
            orchestrator._pool = Dispatcher(
                fleet,
                InlineIndex(index),
                spec.codec(),
                spec.fingerprint,
                spec.capabilities,
                PoolOptions(rows_per_engine=2, batch_rows=orchestrator.config.max_rows),
                clock=clock,
            )
            checked = orchestrator._check([], strategy, None, 0, None, options)
            work = Job(orchestrator, str(rows), out, checked, None, JobOptions(), Stop(), None)
            return await work.run(work.begin())

    return run_virtually(job())
