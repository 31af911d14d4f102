"""What happened to segments: changes that were not told yet, and the keys of what was evicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

from engine.base import KVEvent, token_bytes

_REMEMBERED = 1 << 14


class EventLog:
    """Changes since the last `take`. A key's add and drop cancel out, so that what is not taken does not pile up."""

    def __init__(self) -> None:
        self._pending: dict[bytes, tuple[KVEvent, bool]] = {}

    def add(self, event: KVEvent) -> None:
        """The flag tells whether a receiver may know the key already, and so must hear of its drop."""
        earlier = self._pending.pop(event.key, None)
        known = earlier is not None and earlier[1]
        self._pending[event.key] = (event, known)

    def moved(self, event: KVEvent) -> None:
        """A held key has got another parent."""
        earlier = self._pending.get(event.key)
        self._pending[event.key] = (event, earlier is None or earlier[1])

    def drop(self, key: bytes) -> None:
        earlier = self._pending.pop(key, None)
        if earlier is None or earlier[1]:
            self._pending[key] = (KVEvent("drop", key), True)

    def take(self) -> list[KVEvent]:
        pending, self._pending = self._pending, {}
        return [event for event, _ in pending.values()]

    def shown(self) -> None:
        """Everything held was shown: later drops must be told, too, of what was not taken yet."""
        self._pending = {key: (event, True) for key, (event, _) in self._pending.items()}


class Dropped:
    """Evicted segments by key, the latest ones, so that prefilling them again can be counted."""

    def __init__(self) -> None:
        self._lengths: dict[bytes, tuple[int, int]] = {}
        self._ends: Counter[int] = Counter()

    def note(self, key: bytes, start: int, end: int) -> None:
        self.forget(key)
        self._lengths[key] = (start, end)
        self._ends[end] += 1
        if len(self._lengths) > _REMEMBERED:
            self.forget(next(iter(self._lengths)))

    def forget(self, key: bytes) -> None:
        span = self._lengths.pop(key, None)
        if span is not None:
            self._ends[span[1]] -= 1
            if not self._ends[span[1]]:
                del self._ends[span[1]]

    def among(self, tokens: Sequence[int], held: int, state: blake2b) -> int:
        """How many of tokens[held:] were evicted and not held again; state: key state of tokens[:held].

        Segments that do not come back whole are not counted.
        """
        found, last = 0, held
        for key in self._keys(tokens, held, state):
            start, end = self._lengths[key]
            found += end - max(start, last)
            last = end
        return found

    def returned(self, tokens: Sequence[int], held: int, state: blake2b) -> None:
        """tokens[held:] are held again."""
        for key in self._keys(tokens, held, state):
            self.forget(key)

    def _keys(self, tokens: Sequence[int], held: int, state: blake2b) -> list[bytes]:
        """Keys of what was evicted among the prefixes of `tokens` longer than `held`, shortest first."""
        found, at, state = [], held, state.copy()
        for end in sorted(end for end in self._ends if held < end <= len(tokens)):
            state.update(token_bytes(tokens[at:end]))
            at = end
            if (key := state.copy().digest()) in self._lengths:
                found.append(key)
        return found
