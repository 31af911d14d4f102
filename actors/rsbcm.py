"""RSBCM actor: the global block index and the placement of branches. Plain; `actors.remote` wraps it for Ray."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from actors import messages
from actors.block_index import RENEWAL_S, BlockIndex, Holder
from actors.claims import Claims, Scored
from actors.eviction_proposals import HIGH_WATER, propose
from actors.messages import KEY_BYTES, Ack, BadMessageError, Reply, keys_of, name_of
from actors.placement import Placed
from actors.placer import Assignment, Placer

__all__ = ["RSBCM", "Assignment", "Scored"]

P = ParamSpec("P")
R = TypeVar("R")

NOTICE_S = 600.0
"""A node that is still there so long behind its notice stays after all."""
_NEAR = 0.75
"""Cosine of sketches from which a root counts as near: two problems in one template stay below it."""
_SHARE = 20
"""Looking for proposals may take one part in so many of the actor's time."""


def _entry(method: Callable[Concatenate[RSBCM, P], R]) -> Callable[Concatenate[RSBCM, P], R | None]:
    """One call at a time; one that makes no sense costs a counter, never the actor."""

    @wraps(method)
    def call(self: RSBCM, /, *args: P.args, **kwargs: P.kwargs) -> R | None:
        with self.lock:
            try:
                return method(self, *args, **kwargs)
            except BadMessageError:
                self._counts["bad_messages"] += 1
                return None

    return call


class RSBCM:
    """Losing this actor costs time, not answers: engines and drivers tell a new one all they told the old one.

    lease_s: of holders, see `BlockIndex`. Every entry point may be called from any thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, lease_s: float = math.inf) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        self.index = BlockIndex(clock, lease_s)
        self.claims = Claims(clock)
        self.placer = Placer(lambda key: self.index.holders(key), self._near, clock)
        self._leaving: dict[str, float] = {}
        self._propose_s = clock()
        self._counts = {
            "batches": 0,
            "bad_messages": 0,
            "semantic_home": 0,
            "proposed": 0,
            "refused": 0,
        }

    # -- engines -----------------------------------------------------------------------------------------------------
    def apply(self, data: bytes) -> Reply:
        """Take one packed event batch of an engine; the reply may propose what to evict."""
        return self._apply(data) or Reply("bad")

    @_entry
    def _apply(self, data: bytes) -> Reply:
        batch = messages.unpack(data)
        self._counts["batches"] += 1
        self._counts["refused"] += len(batch.refused)
        self.claims.expire()
        ack = self.index.apply(batch)
        return Reply(ack, self._proposals(batch.actor) if ack == "ok" else ())

    @_entry
    def forget(self, actor: str) -> None:
        """The engine died; what it held is gone."""
        self.index.forget(name_of(actor))

    # -- drivers -----------------------------------------------------------------------------------------------------
    @_entry
    def unpin(self, driver: str, keys: Sequence[bytes]) -> None:
        """These segments were pruned."""
        self.claims.unpin(name_of(driver), keys_of(keys))

    @_entry
    def renew(self, driver: str, pins: int) -> Ack:
        """The driver lives. "resync": other than its number of pins are known, call `restore`."""
        if not isinstance(pins, int):
            raise BadMessageError(f"not a number of pins: {str(pins)[:80]}")
        return "ok" if self.claims.renew(name_of(driver), pins) else "resync"

    @_entry
    def restore(self, driver: str, trees: Mapping[str, Sequence[bytes]]) -> None:
        """All pins of a driver, by tree."""
        if not isinstance(trees, Mapping):
            raise BadMessageError("pins are given by tree")
        self.claims.restore(name_of(driver), {name_of(tree): keys_of(keys) for tree, keys in trees.items()})

    @_entry
    def note_scores(self, scores: Sequence[Scored], driver: str = "") -> None:
        """Scores of judged segments, on each problem's own scale."""
        if not isinstance(scores, list | tuple):
            raise BadMessageError("not a list of scores")
        sound = [item for item in scores if _is_sound(item)]
        self._counts["bad_messages"] += len(scores) - len(sound)
        self.claims.note(name_of(driver), sound)

    @_entry
    def end_tree(self, tree: str, driver: str = "") -> None:
        self.claims.end_tree(name_of(driver), name_of(tree))
        self.placer.end_tree(tree)

    # -- nodes -------------------------------------------------------------------------------------------------------
    @_entry
    def leave(self, node: str, seconds: float) -> None:
        """Notice that a node goes in `seconds`: drivers read it by `leaving` and drain the engines there."""
        if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
            raise BadMessageError(f"not a time to leave in: {str(seconds)[:80]}")
        self._leaving[name_of(node)] = self.clock() + seconds

    def leaving(self) -> dict[str, float]:
        """Nodes that were said to leave, with the seconds they have; one is forgotten `NOTICE_S` behind its time."""
        with self.lock:
            now = self.clock()
            self._leaving = {node: at for node, at in self._leaving.items() if at > now - NOTICE_S}
            return {node: max(at - now, 0.0) for node, at in self._leaving.items()}

    # -- placement ---------------------------------------------------------------------------------------------------
    def assign(self, wave: Assignment) -> list[Placed]:
        """Engine, predicted hit and every term of the decision for each branch of the wave, in order. The wave's paths
        are pinned for its driver: nobody is asked to drop what lies on them until it is pruned or the tree ends.

        No decision at all: this index does not know the driver's engines (it was restarted); send `loads` whole.
        """
        with self.lock:
            self._pin(wave)
            return self.placer.assign(wave)

    @_entry
    def _pin(self, wave: Assignment) -> None:
        keys = {key for branch in wave.branches for key in branch.keys}
        self.claims.pin(name_of(wave.driver), name_of(wave.tree), keys)

    def _near(self, wave: Assignment, free: Sequence[str]) -> str | None:
        """Where a new tree's home should be: an engine with a near root, of those that are not busy. It counts as
        `semantic_home`, never as a hit."""
        found = self.index.nearest(wave.signature, free, _NEAR)
        self._counts["semantic_home"] += found is not None
        return found

    # -- books -------------------------------------------------------------------------------------------------------
    def stats(self) -> dict[str, Any]:
        with self.lock:
            return {**self.index.stats(), **self.claims.stats(), **self.placer.stats(), **self._counts}

    def check_integrity(self) -> None:
        """Raise RuntimeError if the books do not balance."""
        with self.lock:
            self.index.check_integrity()
            self.claims.check_integrity()

    def _proposals(self, actor: str) -> tuple[bytes, ...]:
        """What an engine above its high-water mark might drop. Looking for it takes a small share of the time, and
        each engine is asked once in `RENEWAL_S`."""
        holder, began = self.index.live(actor), self.clock()
        tokens = _too_many(holder) if holder is not None else 0
        if holder is None or tokens <= 0 or began < self._propose_s or began < holder.asked_s + RENEWAL_S:
            return ()
        refused = holder.refused
        keys = propose(
            holder.keys,
            tokens,
            self.claims.omega,
            lambda key: key in refused or self.claims.pinned(key),
            lambda keys: self.index.replicas(keys, actor),
        )
        holder.proposed, holder.asked_s = frozenset(keys), began
        self._counts["proposed"] += len(keys)
        now = self.clock()
        self._propose_s = now + _SHARE * (now - began)
        return keys


def _too_many(holder: Holder) -> int:
    """Tokens that the engine holds above its high-water mark."""
    memory = holder.memory
    if memory is None or not memory.token_bytes:
        return 0
    return math.ceil((memory.used_bytes - HIGH_WATER * memory.limit_bytes) / memory.token_bytes)


def _is_sound(item: object) -> bool:
    if not isinstance(item, Scored) or not isinstance(item.key, bytes) or len(item.key) != KEY_BYTES:
        return False
    return (
        isinstance(item.depth, int)
        and item.depth >= 0
        and isinstance(item.score, int | float)
        and math.isfinite(item.score)
    )
