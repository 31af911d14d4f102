"""Which segments an engine that is short of memory might drop: what others hold first, then the lowest omega.

RKSC: omega of a segment is the maximum over the live segments at and below it. Leaves go first here, and a segment
above them becomes a candidate when all below it went, so that no trunk is proposed before its good leaves.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping

HIGH_WATER = 0.9
"""Share of an engine's KV budget above which the index proposes what to drop."""
MOST = 256

_Rank = tuple[bool, float, int]


def propose(
    held: Mapping[bytes, tuple[bytes, int]],
    tokens: int,
    omega: Callable[[bytes], float | None],
    kept: Callable[[bytes], bool],
    replicas: Callable[[Collection[bytes]], set[bytes]],
) -> tuple[bytes, ...]:
    """Keys to drop, the ones below first, of at least `tokens` tokens if there are as many; `MOST` at most.

    held: (parent's key, end) by key, oldest first. kept: what must not go, and with it nothing above. replicas: those
    of some keys that another engine holds, too; they go before all others. Unscored segments go before scored ones.
    """
    below = Counter(parent for parent, _ in held.values())
    age = {key: number for number, key in enumerate(held)}
    leaves = [key for key in held if key not in below and not kept(key)]
    elsewhere = replicas(leaves)

    def rank(key: bytes) -> _Rank:
        found = omega(key)
        return (key not in elsewhere, -math.inf if found is None else found, age[key])

    heap = [(rank(key), key) for key in leaves]
    heapq.heapify(heap)
    chosen: list[bytes] = []
    while heap and tokens > 0 and len(chosen) < MOST:
        _, key = heapq.heappop(heap)
        chosen.append(key)
        parent, end = held[key]
        tokens -= end - held.get(parent, (b"", 0))[1]
        below[parent] -= 1
        if parent in held and not below[parent] and not kept(parent):
            elsewhere |= replicas([parent])
            heapq.heappush(heap, (rank(parent), parent))
    return tuple(chosen)
