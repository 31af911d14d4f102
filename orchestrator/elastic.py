"""Room for further engines on a cluster, and engines that were lost with their node. Plain; `cluster` asks Ray."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

LOST_S = 600.0
_ROUNDING = 1e-6

Resources = Mapping[str, float]


def room(each: Resources, nodes: Sequence[Resources], free: Resources, engines: int, most: int | None) -> int:
    """Further engines that could start: each takes `each`. nodes: what each live node has in all; free: what nobody on
    the cluster has taken, which may be scattered in shares too small. engines: those that run or were begun."""
    needs = {name: amount for name, amount in each.items() if amount > 0}
    if not needs:
        return 0
    places = min(sum(_fit(needs, node) for node in nodes) - engines, _fit(needs, free))
    return max(places if most is None else min(places, most - engines), 0)


def _fit(needs: Resources, have: Resources) -> int:
    return min(int((have.get(name, 0.0) + _ROUNDING) / amount) for name, amount in needs.items())


class Whereabouts:
    """The node of each engine, and those that have not come back for `patience_s` since their node was lost."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, patience_s: float = LOST_S) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._nodes: dict[str, str] = {}
        self._since_s: dict[str, float] = {}

    def unsure(self, engines: Iterable[str], alive: Collection[str]) -> list[str]:
        """Engines that are to be asked where they are."""
        return [name for name in engines if self._nodes.get(name) not in alive]

    def note(self, engine: str, node: str) -> None:
        self._nodes[engine] = node
        self._since_s.pop(engine, None)

    def on(self, node: str) -> list[str]:
        """Engines on this node."""
        return [name for name, where in self._nodes.items() if where == node]

    def lost(self, engines: Iterable[str], alive: Collection[str]) -> list[str]:
        """Engines to be given up; one that was never heard of is still starting."""
        gone = [name for name in self.unsure(engines, alive) if name in self._nodes]
        now = self._clock()
        self._since_s = {name: self._since_s.get(name, now) for name in gone}
        return [name for name, since_s in self._since_s.items() if now - since_s >= self._patience_s]
