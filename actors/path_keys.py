"""Prefix keys of paths, as `engine.base.path_keys`: a path that extends a known one costs its new segments only."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b

from engine.base import Segments, key_state, token_bytes

_REMEMBERED = 1 << 14


class PathKeys:
    """Segments are told apart by identity, so that a long prompt is neither hashed nor compared twice."""

    def __init__(self, fingerprint: str, remembered: int = _REMEMBERED) -> None:
        self._fingerprint = fingerprint
        self._remembered = remembered
        self._known: OrderedDict[tuple[int, ...], tuple[Segments, blake2b, tuple[bytes, ...]]] = OrderedDict()
        """By the segments' ids: the segments, kept so that no other object takes an id; hash state; keys."""

    def of(self, path: Segments) -> tuple[bytes, ...]:
        """One key a segment."""
        ids = tuple(map(id, path))
        count = len(ids)
        while count and ids[:count] not in self._known:
            count -= 1
        if count:
            self._known.move_to_end(ids[:count])
            _, known, keys = self._known[ids[:count]]
            state = known.copy()
        else:
            state, keys = key_state(self._fingerprint), ()
        for at in range(count, len(path)):
            state.update(token_bytes(path[at][:-1]))
            keys = (*keys, state.copy().digest())
            state.update(token_bytes(path[at][-1:]))
            self._remember(ids[: at + 1], path[: at + 1], state.copy(), keys)
        return keys

    def _remember(self, ids: tuple[int, ...], path: Segments, state: blake2b, keys: tuple[bytes, ...]) -> None:
        self._known[ids] = (path, state, keys)
        while len(self._known) > self._remembered:
            self._known.popitem(last=False)
