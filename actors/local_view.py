"""What the driver itself knows of who holds what: enough to place branches while the index is down."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence

from actors.placement import Branch

_REMEMBERED = 1 << 16


class LocalView:
    """The engines that grew each prefix, and all engines that worked on each root; the oldest are forgotten."""

    def __init__(self) -> None:
        self._held: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()
        self._below: dict[bytes, set[bytes]] = {}
        self._root: dict[bytes, bytes] = {}
        self._used: OrderedDict[bytes, set[str]] = OrderedDict()
        self._before: dict[bytes, set[str]] = {}

    def note(self, engine: str, keys: Sequence[bytes]) -> None:
        """`engine` holds the prefixes of one path with these keys, the prompt's first."""
        for key in keys:
            known = self._held.get(key, ())
            if known[:1] != (engine,):
                self._held[key] = (engine, *(other for other in known if other != engine))
            if not known:
                self._root[key] = keys[0]
                self._below.setdefault(keys[0], set()).add(key)
            self._held.move_to_end(key)
        while len(self._held) > _REMEMBERED:
            self._drop(next(iter(self._held)))

    def holders(self, key: bytes) -> Collection[str]:
        """The engines known to hold this prefix, that which grew it last first."""
        return self._held.get(key, ())

    def held(self, actor: str, branch: Branch) -> int:
        """Tokens of the longest prefix of the branch that `actor` is known to hold."""
        for key, end in zip(reversed(branch.keys), reversed(branch.ends), strict=True):
            if actor in self._held.get(key, ()):
                return end
        return 0

    def note_use(self, engine: str, root: bytes) -> None:
        """`engine` is given work on paths that begin with this prompt."""
        used = self._used.setdefault(root, set())
        used.add(engine)
        self._used.move_to_end(root)
        while len(self._used) > _REMEMBERED:
            self._before.pop(self._used.popitem(last=False)[0], None)

    def used(self, root: bytes) -> Collection[str] | None:
        """Engines that worked on paths with this prompt; None if it is not known.

        Also those that were forgotten since: one that only seemed to be down still holds what it held.
        """
        used = self._used.get(root)
        return None if used is None else used | self._before.get(root, set())

    def release(self, keys: Iterable[bytes]) -> None:
        """Nobody holds these prefixes any more; with a prompt goes all that begins with it."""
        for key in keys:
            for below in list(self._below.get(key, ())):
                self._drop(below)
            self._drop(key)

    def end(self, root: bytes) -> None:
        """Nobody works on this prompt any more."""
        self.release([root])
        self._used.pop(root, None)
        self._before.pop(root, None)

    def forget(self, actor: str) -> None:
        """The engine restarts with nothing, or left."""
        for key, holders in list(self._held.items()):
            if holders == (actor,):
                self._drop(key)
            elif actor in holders:
                self._held[key] = tuple(holder for holder in holders if holder != actor)
        for root, used in self._used.items():
            if actor in used:
                used.remove(actor)
                self._before.setdefault(root, set()).add(actor)

    def _drop(self, key: bytes) -> None:
        if self._held.pop(key, None) is not None:
            root = self._root.pop(key)
            below = self._below[root]
            below.remove(key)
            if not below:
                del self._below[root]
