"""Where a tree lives: as many engines as its ready rows fill, the least loaded, changed only where that pays."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice

from actors.placement import Branch, Holders


def home(
    size: int,
    previous: Sequence[str],
    lightest: Iterable[str],
    busy_s: Callable[[str], float],
    margin_s: float,
    rivals: Callable[[str], Collection[str]] = lambda actor: (),
) -> tuple[str, ...]:
    """Engines a tree lives on: former ones, then the least loaded.

    previous: those it lives on, the most useful first. lightest: engines by growing load, read as far as needed. A
    former one gives way only to an engine that has `margin_s` less to do (hysteresis), and to none of its rivals, with
    which it shares hardware that is full.
    """
    kept = list(previous[:size])
    others = iter(actor for actor in lightest if actor not in previous[:size])
    added = list(islice(others, size - len(kept)))
    for at in sorted(range(len(kept)), key=lambda at: -busy_s(kept[at])):
        shared = rivals(kept[at])
        other = next((other for other in others if other not in shared), None)
        if other is None or busy_s(kept[at]) - busy_s(other) <= margin_s:
            break
        kept[at] = other
    return (*kept, *added)


def home_size(rows: float, others: float, rows_per_engine: int, engines: int) -> int:
    """ceil(ready rows / rows for an engine), at least one, at most all.

    Rows for an engine are those that fill it or, where the rows of this and the `others` fill all engines, an equal
    share of them: a tree that is spread keeps its prefix on each engine, and brings nobody more work then.
    """
    share = max(rows_per_engine, (rows + others) / engines)
    return min(max(math.ceil(rows / share), 1), engines)


def by_usefulness(previous: Sequence[str], branches: Sequence[Branch], holders: Holders) -> list[str]:
    """`previous`, those first that hold the ends of most branches."""
    counts = dict.fromkeys(previous, 0)
    for branch in branches:
        held = holders(branch.keys[-1]) if branch.keys else ()
        if branch.grown_on in counts and branch.grown_on not in held:
            counts[branch.grown_on] += 1
        fewer, others = (counts, held) if len(counts) < len(held) else (held, counts)
        for actor in fewer:
            if actor in others:
                counts[actor] += 1
    return sorted(previous, key=lambda actor: -counts[actor])
