"""Roots that an engine holds, told to the block index by their sketches."""

from __future__ import annotations

from collections import OrderedDict

from engine.base import KVEvent
from engine.kv_tree import KVTree
from engine.sketch import sketch

_MOST = 1024


class Roots:
    """Sketches by the key of the prompt's held part; the oldest are forgotten. A dropped key takes its sketch along."""

    def __init__(self, tree: KVTree) -> None:
        self._tree = tree
        self._held: OrderedDict[bytes, bytes] = OrderedDict()
        self._new: list[KVEvent] = []

    def note(self, key: bytes, prompt: tuple[int, ...]) -> None:
        """The prompt's KV is held under this key."""
        if key in self._held:
            return
        self._held[key] = sketch(prompt)
        self._new.append(KVEvent("sign", key, signature=self._held[key]))
        while len(self._held) > _MOST:
            self._held.popitem(last=False)

    def events(self) -> list[KVEvent]:
        """Sketches since the last call, of what is still held."""
        new, self._new = self._new, []
        self._forget()
        return [event for event in new if event.key in self._held]

    def snapshot(self) -> list[KVEvent]:
        self._forget()
        return [KVEvent("sign", key, signature=found) for key, found in self._held.items()]

    def _forget(self) -> None:
        for key in [key for key in self._held if self._tree.find(key) is None]:
            del self._held[key]
