"""EngineActor: one engine behind calls that may be repeated, publishing what it holds. Plain; `remote` wraps it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from actors.block_index import RENEWAL_S
from actors.convert import to_outcome, to_query, to_request, to_score
from actors.messages import Memory
from actors.publisher import Publish, Publisher
from engine.base import BranchRequest, Cancelling, Engine, Evicting, Exporting
from search.types import Expansion, Outcome, Score, ScoreRequest

logger = logging.getLogger(__name__)


def request_id(token: str, order_id: str) -> str:
    """Names one dispatch of one order: two searches of one problem have orders of equal ids."""
    return f"{token}/{order_id}"


_REMEMBERED = 1024


class EngineActor:
    """publish: see `Publisher`. background: a thread of its own waits for the index, and no call does; else each call
    tells what it changed before it returns, which is for an index in this process.

    incarnation: grows with every start, so that messages of a dead predecessor are told apart.
    """

    def __init__(
        self, name: str, build: Callable[[], Engine], publish: Publish | None = None, background: bool = False
    ) -> None:
        self.name = name
        self.incarnation = time.time_ns()
        self.engine = build()
        self._done: OrderedDict[tuple[str, str], Outcome] = OrderedDict()
        self._recalled: OrderedDict[str, None] = OrderedDict()
        self._one_call = nullcontext() if self.engine.concurrent else threading.Lock()
        self._books = threading.Lock()
        self._publisher: Publisher | None = None
        self._wake = threading.Event() if background else None
        self._closed = False
        if publish is not None:
            self._publisher = Publisher(name, self.incarnation, publish, self.engine.snapshot(), memory=self._memory)
            if background:
                threading.Thread(target=self._tell, name=f"{name}-publisher", daemon=True).start()

    def expand(self, orders: Sequence[Expansion], token: str) -> list[Outcome]:
        """Outcomes in order. `token` names the dispatch: an order repeated under it is answered from memory.

        Calls may come from several threads; a concurrent engine serves them in one batch, others one by one.
        """
        with self._one_call:
            with self._books:
                done = {order.id: self._known(token, order) for order in orders}
            todo = [order for order in orders if done[order.id] is None]
            requests = [self._request(order, request_id(token, order.id)) for order in todo]
            results = self.engine.expand(requests) if todo else []
            fresh = {o.id: to_outcome(o, result, self.name) for o, result in zip(todo, results, strict=True)}
            self._remember(token, fresh)
            self._announce()
        return [done[order.id] or fresh[order.id] for order in orders]

    def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        with self._one_call:
            results = self.engine.score([to_query(request) for request in requests])
            self._announce()
        return [to_score(result, self.name) for _, result in zip(requests, results, strict=True)]

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
        """KV of a path for another engine (see `engine.base.Exporting`); waits for no call under way."""
        return self._exporting.export_kv(key, start)

    def import_kv(self, data: bytes) -> int:
        """Hold what another engine exported; tokens of its path that are held now. Waits for no call under way."""
        held = self._exporting.import_kv(data)
        self._follow()
        return held

    def ping(self) -> int:
        """Process id; answers once the engine is loaded."""
        return os.getpid()

    def stats(self) -> dict[str, Any]:
        told = {f"events_{name}": n for name, n in self._publisher.counts.items()} if self._publisher else {}
        return {"name": self.name, "pid": os.getpid(), **self.engine.stats(), **told}

    def close(self) -> None:
        """End the thread that tells the index, once it has its answer."""
        self._closed = True
        if self._wake is not None:
            self._wake.set()

    @property
    def _exporting(self) -> Exporting:
        if not isinstance(self.engine, Exporting):
            raise TypeError(f"a {type(self.engine).__name__} cannot send or take KV")
        return self.engine

    def _request(self, order: Expansion, id: str) -> BranchRequest:
        """A recall that comes before the engine knows the request is found when it does."""
        return replace(to_request(order, id), recalled=lambda: id in self._recalled)

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
        """Note what changed for the index. The engine bears calls now."""
        with self._books:
            if self._publisher is None:
                self.engine.events()
                return
            self._shed(self._publisher)
            self._publisher.note(self.engine.events())
            if self._wake is not None:
                self._wake.set()
                return
            self._publisher.flush()
            if self._shed(self._publisher):
                self._publisher.note(self.engine.events())
                self._publisher.flush()

    def _shed(self, publisher: Publisher) -> bool:
        """Drop what the index proposes, as far as the engine agrees; whether it was asked."""
        keys = publisher.proposed()
        if keys and isinstance(self.engine, Evicting):
            try:
                publisher.refuse(self.engine.evict(keys))
            except Exception:  # following a proposal is a favour; no call fails for it
                logger.exception("engine %s cannot evict", self.name)
                publisher.refuse(keys)
        return bool(keys)

    def _memory(self) -> Memory | None:
        pressure = self.engine.pressure() if isinstance(self.engine, Evicting) else None
        return None if pressure is None else Memory(*pressure)

    def _tell(self) -> None:
        """The thread that waits for the index. An engine that takes one call at a time follows proposals after it."""
        publisher, wake = self._publisher, self._wake
        while publisher is not None and wake is not None and not self._closed:
            try:
                wait = publisher.pump()
            except Exception:  # a silent engine is one that nobody places branches on
                logger.exception("engine %s cannot tell the index", self.name)
                wait = RENEWAL_S
            wake.wait(wait)
            wake.clear()
            if publisher.has_proposals:
                self._follow()

    def _follow(self) -> None:
        """Announce what changed beside the calls; an engine that takes one call at a time does it after the call."""
        if isinstance(self._one_call, nullcontext):
            self._announce()
        elif self._one_call.acquire(blocking=False):
            try:
                self._announce()
            finally:
                self._one_call.release()
