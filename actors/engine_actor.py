"""EngineActor: one engine behind calls that may be repeated, publishing what it holds. Plain; `remote` wraps it."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from actors.convert import to_outcome, to_query, to_request, to_score
from actors.messages import EventBatch, pack
from engine.base import Cancelling, Engine, Exporting
from search.types import Expansion, Outcome, Score, ScoreRequest

Publish = Callable[[bytes], str]


def request_id(token: str, order_id: str) -> str:
    """Names one dispatch of one order: two searches of one problem have orders of equal ids."""
    return f"{token}/{order_id}"


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
        self._recalled: OrderedDict[str, None] = OrderedDict()
        self._one_call = nullcontext() if self.engine.concurrent else threading.Lock()
        self._books = threading.Lock()

    def expand(self, orders: Sequence[Expansion], token: str) -> list[Outcome]:
        """Outcomes in order. `token` names the dispatch: an order repeated under it is answered from memory.

        Calls may come from several threads; a concurrent engine serves them in one batch, others one by one.
        """
        with self._one_call:
            with self._books:
                done = {order.id: self._known(token, order) for order in orders}
            todo = [order for order in orders if done[order.id] is None]
            requests = [to_request(order, request_id(token, order.id)) for order in todo]
            results = self.engine.expand(requests) if todo else []
            fresh = {o.id: to_outcome(o, result, self.name) for o, result in zip(todo, results, strict=True)}
            self._remember(token, fresh)
            self._announce()
        return [done[order.id] or fresh[order.id] for order in orders]

    def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        with self._one_call:
            results = self.engine.score([to_query(request) for request in requests])
            self._announce()
        return [to_score(result, self.name) for result in results]

    def release(self, keys: Sequence[bytes]) -> None:
        with self._one_call:
            self.engine.release(keys)
            self._announce()

    def cancel(self, ids: Sequence[str]) -> None:
        """End requests, by `request_id`, with what they have; those still to come end at once. Waits for no call."""
        with self._books:
            self._recalled.update((id, None) for id in ids)
            while len(self._recalled) > _REMEMBERED:
                self._recalled.popitem(last=False)
        if isinstance(self.engine, Cancelling):
            self.engine.cancel(ids)

    def note_scores(self, items: Sequence[tuple[bytes, float, int]]) -> None:
        """(prefix key, score, depth) of judged nodes; waits for no call under way."""
        self.engine.note_scores(items)

    def export_kv(self, key: bytes, start: int = 0) -> bytes:
        """KV of a path for another engine (see `engine.base.Exporting`)."""
        return self._exporting.export_kv(key, start)

    def import_kv(self, data: bytes) -> int:
        """Hold what another engine exported; tokens of its path that are held now."""
        held = self._exporting.import_kv(data)
        self._announce()
        return held

    def ping(self) -> int:
        """Process id; answers once the engine is loaded."""
        return os.getpid()

    def stats(self) -> dict[str, Any]:
        return {"name": self.name, "pid": os.getpid(), **self.engine.stats()}

    @property
    def _exporting(self) -> Exporting:
        if not isinstance(self.engine, Exporting):
            raise TypeError(f"a {type(self.engine).__name__} cannot send or take KV")
        return self.engine

    def _known(self, token: str, order: Expansion) -> Outcome | None:
        """The outcome of an order that was answered, or recalled before it came."""
        if request_id(token, order.id) in self._recalled:
            return Outcome(order.id, order.problem_id, order.node_id, engine=self.name)
        return self._done.get((token, order.id))

    def _remember(self, token: str, outcomes: Mapping[str, Outcome]) -> None:
        with self._books:
            self._done.update({(token, order_id): outcome for order_id, outcome in outcomes.items()})
            while len(self._done) > _REMEMBERED:
                self._done.popitem(last=False)

    def _announce(self) -> None:
        """Send what changed, one batch at a time; a receiver that missed something gets everything."""
        with self._books:
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
