"""A trace on virtual engines: each request starts at its time, behind the request that it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from actors.dispatcher import Dispatcher
from bench.scale.trace import Request
from search.types import Boundary, Expansion, Sampling


async def replay(pool: Dispatcher, requests: Sequence[Request]) -> list[float]:
    """Seconds from when each request could start to its end."""
    loop = asyncio.get_running_loop()
    ended: dict[str, asyncio.Future[None]] = {request.id: loop.create_future() for request in requests}

    async def one(request: Request) -> float:
        if request.parent is not None:
            await ended[request.parent]
        await asyncio.sleep(max(request.at_s - loop.time(), 0.0))
        began = loop.time()
        outcome = (await pool.expand([_order(request)]))[0]
        if outcome.error is not None:
            raise RuntimeError(f"request {request.id}: {outcome.error}")
        ended[request.id].set_result(None)
        if request.score is not None:
            await pool.note_scores([(request.path, request.score, len(request.path))])
        return loop.time() - began

    return list(await asyncio.gather(*(one(request) for request in requests)))


def _order(request: Request) -> Expansion:
    length = len(request.output)
    sampling = Sampling(max_tokens=length, boundary=Boundary(delimiter=None, tokens=length))
    return Expansion(request.id, request.tree, request.id, request.path, 1, sampling)
