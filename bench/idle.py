"""Idle shares of engines in a batch job, real Ray, four engine actors: `python -m bench.idle [--rounds N] [--save]`.

64 simulated problems of mixed lengths by `mcts`, on engines that sleep for as long as they say; with so many problems
in flight. An engine is idle while the driver has no call to it under way.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bench.environment import environment
from bench.markdown import markdown
from bench.stream import write_rows
from orchestrator import Orchestrator

_RESULTS = Path(__file__).parent / "results" / "idle.json"
_COLUMNS = ("in flight", "seconds", "idle", "idlest engine")
_ENGINES, _ROWS = 4, 64
_SPEEDS = {"step_s": 0.003, "per_call_s": 0.015, "depth": 8, "realtime": True}


def measure(concurrency: int, rounds: int) -> dict[str, Any]:
    """Medians over the rounds of the makespan, the mean share and the largest one; the shares of each round."""
    seconds: list[float] = []
    shares: list[list[float]] = []
    config = {"model": "simulated", "engines": _ENGINES, "simulated": _SPEEDS, "concurrency": concurrency}
    with tempfile.TemporaryDirectory() as folder, Orchestrator(**config) as orchestrator:
        rows = Path(folder) / "rows.jsonl"
        write_rows(rows, _ROWS)
        orchestrator.start()
        for i in range(rounds):
            summary = orchestrator.run_batch(rows, Path(folder) / str(i), "mcts", simulations=8, seed=i)
            if summary.rows != _ROWS or summary.failed:
                raise RuntimeError(f"{summary.failed} of {summary.rows} rows failed")
            seconds.append(summary.seconds)
            shares.append(list(summary.idle.values()))
    return {
        "in flight": concurrency,
        "seconds": round(median(seconds), 2),
        "idle": round(median(map(fmean, shares)), 4),
        "idlest engine": round(median(map(max, shares)), 4),
        "shares": shares,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help=f"write {_RESULTS.name} in bench/results")
    options = parser.parse_args()
    rows = [measure(concurrency, options.rounds) for concurrency in (4, 8, 16, 32)]
    cells = [[str(row["in flight"]), str(row["seconds"]), *(f"{row[c]:.1%}" for c in _COLUMNS[2:])] for row in rows]
    print(markdown([_COLUMNS, *cells]))
    if options.save:
        found = {"environment": environment(), "engines": _ENGINES, "problems": _ROWS, "speeds": _SPEEDS, "rows": rows}
        _RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
