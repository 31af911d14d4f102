"""What the driver itself knows of who holds what: enough to place branches while the index is down."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable

from actors.placement import Branch

_REMEMBERED = 1 << 16


class LocalView:
    """The engine that last grew each prefix, and all engines that worked on each root; the oldest are forgotten."""

    def __init__(self) -> None:
        self._grown_on: OrderedDict[bytes, str] = OrderedDict()
        self._used: OrderedDict[bytes, set[str]] = OrderedDict()
        self._before: dict[bytes, set[str]] = {}

    def note(self, engine: str, keys: Iterable[bytes]) -> None:
        """`engine` holds the prefixes with these keys."""
        for key in keys:
            self._grown_on[key] = engine
            self._grown_on.move_to_end(key)
        while len(self._grown_on) > _REMEMBERED:
            self._grown_on.popitem(last=False)

    def holders(self, key: bytes) -> Collection[str]:
        """The engine known to hold this prefix, if there is one."""
        engine = self._grown_on.get(key)
        return () if engine is None else (engine,)

    def held(self, actor: str, branch: Branch) -> int:
        """Tokens of the longest prefix of the branch that `actor` is known to hold."""
        for key, end in zip(reversed(branch.keys), reversed(branch.ends), strict=True):
            if self._grown_on.get(key) == actor:
                return end
        return branch.root_length if actor in self._used.get(branch.root, ()) else 0

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

    def end(self, root: bytes) -> None:
        """Nobody works on this prompt any more."""
        self._used.pop(root, None)
        self._before.pop(root, None)

    def forget(self, actor: str) -> None:
        """The engine restarts with nothing, or left."""
        for key in [key for key, engine in self._grown_on.items() if engine == actor]:
            del self._grown_on[key]
        for root, used in self._used.items():
            if actor in used:
                used.remove(actor)
                self._before.setdefault(root, set()).add(actor)
