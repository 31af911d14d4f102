"""Milliseconds that the index needs to place a wave of 256 branches, for 64 engines and for many more."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter, process_time
from typing import Any

from actors.messages import EventBatch
from actors.placement import Branch, Load
from actors.rsbcm import RSBCM, Assignment

REQUIRED_MS = 10.0
"""Median of a wave over `REQUIRED_ENGINES` engines."""
REQUIRED_ENGINES = 64
BRANCHES = 256
ENGINES = (64, 2048)
_PROMPT, _STEP, _DEPTH, _ROWS = 1500, 120, 6, 16


def measure(rounds: int, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Rows of all sizes: one tree's wave of 256 branches, and 64 waves of 4."""
    return [_row(kind, engines, rounds, tell) for engines in ENGINES for kind in ("one tree", "64 trees")]


def line(row: Mapping[str, Any]) -> str:
    required = f", {row['required_ms']:g} required" if row["required_ms"] else ""
    return (
        f"assign of {row['branches']} branches ({row['kind']}) over {row['engines']} engines: "
        f"{row['median_ms']:.2f} ms (slowest round {row['max_ms']:.2f}, CPU {row['median_cpu_ms']:.2f}){required}"
    )


def _row(kind: str, engines: int, rounds: int, tell: Callable[[str], None]) -> dict[str, Any]:
    tell(f"assign {kind}: {engines} engines")
    source = random.Random(engines)
    names = [f"engine-{i}" for i in range(engines)]
    rsbcm = RSBCM()
    loads = {name: _load(source) for name in names}
    trees = 1 if kind == "one tree" else 64
    waves = [_wave(rsbcm, source, names, number, BRANCHES // trees) for number in range(trees)]
    rsbcm.assign(Assignment("", (), loads, _ROWS, driver="bench"))
    times: list[float] = []
    cpu_times: list[float] = []
    for number in range(rounds + 1):
        changed = {name: _load(source) for name in source.sample(names, 16)}
        asked = [Assignment(f"t{i}", wave, changed, _ROWS, driver="bench", whole=False) for i, wave in enumerate(waves)]
        gc.collect()
        began, cpu_began = perf_counter(), process_time()
        placed = [rsbcm.assign(wave) for wave in asked]
        seconds, cpu_s = perf_counter() - began, process_time() - cpu_began
        if sum(map(len, placed)) != BRANCHES or {p.actor for wave in placed for p in wave} - set(names):
            raise RuntimeError("not every branch was placed on an engine")
        if number:
            times.append(1000 * seconds)
            cpu_times.append(1000 * cpu_s)
    required = REQUIRED_MS if engines == REQUIRED_ENGINES and kind == "one tree" else None
    return {
        "part": "assign",
        "kind": kind,
        "engines": engines,
        "branches": BRANCHES,
        "rounds": rounds,
        "median_ms": median(times),
        "max_ms": max(times),
        "median_cpu_ms": median(cpu_times),
        "required_ms": required,
        "reached": required is None or median(times) < required,
    }


def _wave(rsbcm: RSBCM, source: random.Random, names: list[str], tree: int, size: int) -> tuple[Branch, ...]:
    """Leaves of one tree, each held by one to three engines, their trunks by more."""
    ends = tuple(_PROMPT + _STEP * level - 1 for level in range(_DEPTH))
    root = source.randbytes(16)
    trunks = [[source.randbytes(16) for _ in range(4**level)] for level in range(1, _DEPTH)]
    branches = []
    held: dict[str, dict[bytes, int]] = {name: {} for name in names}
    for number in range(size):
        keys = (root, *(keys[number % len(keys)] for keys in trunks[:-1]), source.randbytes(16))
        branches.append(Branch(f"{tree}/{number}", keys, ends, 4, 60))
        for name in source.sample(names, source.randint(1, 3)):
            held[name].update(zip(keys, ends, strict=True))
    for name, keys_of in held.items():
        added, ends_of = tuple(keys_of), tuple(keys_of.values())
        rsbcm.index.apply(EventBatch(name, 1, tree, 0.0, added, (bytes(16),) * len(added), ends_of))
    return tuple(branches)


def _load(source: random.Random) -> Load:
    return Load(source.randrange(4000), source.randrange(32), source.uniform(4000, 9000), source.uniform(0.01, 0.04))
