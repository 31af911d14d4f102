"""EngineActor: one engine behind calls that may be repeated, publishing what it holds. Plain; `remote` wraps it."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from actors.convert import to_outcome, to_query, to_request, to_score
from actors.messages import EventBatch, pack
from engine.base import Engine
from search.types import Expansion, Outcome, Score, ScoreRequest

Publish = Callable[[bytes], str]
_REMEMBERED = 1024


class EngineActor:
    """publish: hands an event batch to the index and returns its acknowledgement; that it raises is no error here.

    incarnation: grows with every start, so that messages of a dead predecessor are told apart.
    """

    def __init__(self, name: str, build: Callable[[], Engine], publish: Publish | None = None) -> None:
        self.name = name
        self.incarnation = time.time_ns()
        self.engine = build()
        self._publish = publish
        self._seq = 0
        self._done: OrderedDict[tuple[str, str], Outcome] = OrderedDict()

    def expand(self, orders: Sequence[Expansion], token: str) -> list[Outcome]:
        """Outcomes in order. `token` names the dispatch: an order repeated under it is answered from memory."""
        todo = [order for order in orders if (token, order.id) not in self._done]
        if todo:
            results = self.engine.expand([to_request(order) for order in todo])
            for order, result in zip(todo, results, strict=True):
                self._done[token, order.id] = to_outcome(order, result, self.name)
            self._announce()
        outcomes = [self._done[token, order.id] for order in orders]
        while len(self._done) > _REMEMBERED:
            self._done.popitem(last=False)
        return outcomes

    def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        results = self.engine.score([to_query(request) for request in requests])
        self._announce()
        return [to_score(result, self.name) for result in results]

    def release(self, keys: Sequence[bytes]) -> None:
        self.engine.release(keys)
        self._announce()

    def ping(self) -> int:
        """Process id; answers once the engine is loaded."""
        return os.getpid()

    def stats(self) -> dict[str, Any]:
        return {"name": self.name, "pid": os.getpid(), **self.engine.stats()}

    def _announce(self) -> None:
        """Send what changed; a receiver that missed something gets everything."""
        events = self.engine.events()
        if self._publish is None or not events:
            return
        try:
            if self._publish(self._batch(events, snapshot=False)) == "resync":
                self._publish(self._batch(self.engine.snapshot(), snapshot=True))
        except Exception:  # the index is a cache of facts: without it placement is worse, answers are the same
            return

    def _batch(self, events: Sequence[Any], snapshot: bool) -> bytes:
        batch = EventBatch(self.name, self.incarnation, self._seq, time.time(), tuple(events), snapshot)
        self._seq += 1
        return pack(batch)
