"""What the driver itself knows of who holds what: enough to place branches while the index is down."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from actors.placement import Branch

_REMEMBERED = 1 << 16


class LocalView:
    """The engine that last grew each prefix; the oldest entries are forgotten first."""

    def __init__(self) -> None:
        self._grown_on: OrderedDict[bytes, str] = OrderedDict()

    def note(self, engine: str, keys: Iterable[bytes]) -> None:
        """`engine` holds the prefixes with these keys."""
        for key in keys:
            self._grown_on[key] = engine
            self._grown_on.move_to_end(key)
        while len(self._grown_on) > _REMEMBERED:
            self._grown_on.popitem(last=False)

    def held(self, actor: str, branch: Branch) -> int:
        """Tokens of the longest prefix of the branch that `actor` is known to hold."""
        ends = (end for key, end in zip(branch.keys, branch.ends, strict=True) if self._grown_on.get(key) == actor)
        return max(ends, default=0)

    def holders(self, branches: Sequence[Branch]) -> list[str]:
        """Engines known to hold something of these branches, those that hold most first."""
        known = Counter(
            engine for branch in branches for key in branch.keys if (engine := self._grown_on.get(key)) is not None
        )
        return [engine for engine, _ in known.most_common()]

    def forget(self, actor: str) -> None:
        """The engine restarts with nothing."""
        for key in [key for key, engine in self._grown_on.items() if engine == actor]:
            del self._grown_on[key]
