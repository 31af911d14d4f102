"""Segment entries a second that the index takes in, from packed bytes to its books, each batch packed once before."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from time import perf_counter, process_time
from typing import Any

from actors.messages import Digest, EventBatch, pack
from actors.rsbcm import RSBCM

REQUIRED = 500_000
"""Entries a second of the index's own CPU time: one thread that waits for nothing, whatever else the machine does."""
_SHARED = 0.25
"""Share of the keys that another engine holds, too: prompts and trunks that were replicated."""
ENGINES = 64

Round = Callable[[random.Random, int, int], list[bytes]]


def measure(entries: int, batch: int, rounds: int, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Rows of all kinds. entries: changes in a round; batch: of them in one message."""
    return [_row(name, make, entries, batch, rounds, tell) for name, make in KINDS.items()]


def line(row: Mapping[str, Any]) -> str:
    cpu, wall, slowest = (row[name] / 1e6 for name in ("entries_per_cpu_s", "entries_per_s", "entries_per_s_min"))
    return (
        f"ingest {row['kind']}: {cpu:.2f} million entries a CPU second ({row['required_per_s'] / 1e6:.1f} required),"
        f" {wall:.2f} million/s by the clock (slowest round {slowest:.2f})"
    )


def growing(source: random.Random, entries: int, size: int) -> list[bytes]:
    """Engines that only hold more."""
    return [pack(batch) for batch in _batches(source, entries, size, held=entries)]


def steady(source: random.Random, entries: int, size: int) -> list[bytes]:
    """Engines that are full: half of the changes are drops of the oldest keys."""
    return [pack(batch) for batch in _batches(source, entries, size, held=2 * size)]


def snapshots(source: random.Random, entries: int, size: int) -> list[bytes]:
    """A new index hears from all engines at once: the first batch of each voids what was held."""
    return [pack(batch) for batch in _batches(source, entries, size, held=entries, opening=True)]


KINDS: dict[str, Round] = {"growing": growing, "steady": steady, "snapshots": snapshots}


def _row(name: str, make: Round, entries: int, size: int, rounds: int, tell: Callable[[str], None]) -> dict[str, Any]:
    rates, cpu_rates = [], []
    for number in range(rounds + 1):
        tell(f"ingest {name}: round {number} of {rounds}")
        messages = make(random.Random(number), entries, size)
        seconds, cpu_s = _ingest(messages)
        if number:
            rates.append(len(messages) * size / seconds)
            cpu_rates.append(len(messages) * size / cpu_s)
    return {
        "part": "ingest",
        "kind": name,
        "engines": ENGINES,
        "entries": entries,
        "batch": size,
        "rounds": rounds,
        "entries_per_s": median(rates),
        "entries_per_s_min": min(rates),
        "entries_per_cpu_s": median(cpu_rates),
        "required_per_s": REQUIRED,
        "reached": median(cpu_rates) >= REQUIRED,
    }


def _ingest(messages: list[bytes]) -> tuple[float, float]:
    """Seconds, and CPU seconds; every message must be taken, and the books must balance in the end."""
    rsbcm = RSBCM()
    gc.collect()
    began, cpu_began = perf_counter(), process_time()
    acks = [rsbcm.apply(data).ack for data in messages]
    seconds, cpu_s = perf_counter() - began, process_time() - cpu_began
    if set(acks) != {"ok"}:
        raise RuntimeError(f"the index answered {sorted(set(acks))}")
    rsbcm.check_integrity()
    return seconds, cpu_s


def _batches(source: random.Random, entries: int, size: int, held: int, opening: bool = False) -> Iterator[EventBatch]:
    """Batches of the engines in turn, with digests. held: keys an engine holds at most."""
    shared = [source.randbytes(16) for _ in range(size)]
    keys: list[list[bytes]] = [[] for _ in range(ENGINES)]
    digests = [Digest()] * ENGINES
    for number in range(max(entries // size, 1)):
        engine, seq = number % ENGINES, number // ENGINES
        own = keys[engine]
        dropped = own[: size // 2] if len(own) >= held else []
        del own[: len(dropped)]
        wanted = size - len(dropped)
        common = source.sample(shared, int(wanted * _SHARED)) if seq == 0 else []
        added = [source.randbytes(16) for _ in range(wanted - len(common))] + common
        digests[engine] = digests[engine].minus(dropped).plus(added)
        own += added
        yield EventBatch(
            f"engine-{engine}",
            1,
            seq,
            0.0,
            added=tuple(added),
            parents=tuple(added[:1] + added[:-1]),
            ends=tuple(range(1, wanted + 1)),
            dropped=tuple(dropped),
            snapshot=opening and seq == 0,
            digest=digests[engine],
        )
