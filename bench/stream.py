"""A batch input streams: seconds to the first result, and the driver's memory while rows pass through it.

python -m bench.stream --rows 100000 --out bench/results/stream.json

Simulated engines in the driver's own process, so that what they keep counts, too. Results, journals and events go to
a folder that is removed at the end.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.environment import environment
from orchestrator import Orchestrator
from search.types import Event

SAMPLES = 20


def resident_mib() -> float:
    """Memory of this process that is in RAM."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def write_rows(file: Path, rows: int) -> None:
    with file.open("w") as out:
        for i in range(rows):
            out.write(json.dumps({"id": i, "question": f"What is {i} + {i}?", "answer": str(2 * i)}) + "\n")


def stream(rows: int, folder: Path, strategy: str = "greedy", concurrency: int = 16) -> dict[str, Any]:
    """Rows are written, then solved. memory: (rows done, seconds, MiB resident), the first one at the first result."""
    write_rows(folder / "rows.jsonl", rows)
    before, began = resident_mib(), time.monotonic()
    memory: list[tuple[int, float, float]] = []
    done = 0

    def watch(event: Event) -> None:
        nonlocal done
        if event.kind == "row":
            done += 1
            if done == 1 or done % max(rows // SAMPLES, 1) == 0:
                memory.append((done, round(time.monotonic() - began, 3), round(resident_mib(), 1)))

    with Orchestrator(model="simulated", engines=4, runtime="inline", concurrency=concurrency) as orchestrator:
        summary = orchestrator.run_batch(folder / "rows.jsonl", folder / "run", strategy, on_event=watch)
    seconds = time.monotonic() - began
    return {
        "rows": summary.rows,
        "failed": summary.failed,
        "strategy": strategy,
        "concurrency": concurrency,
        "seconds": round(seconds, 1),
        "rows_per_s": round(rows / seconds, 1),
        "first_result_s": memory[0][1],
        "before_mib": round(before, 1),
        "growth_mib_second_half": round(memory[-1][2] - memory[len(memory) // 2][2], 1),
        "memory": memory,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--strategy", default="greedy")
    parser.add_argument("--out", type=Path, help="JSON file; standard output by default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {"environment": environment(), **stream(options.rows, Path(folder), options.strategy)}
    text = json.dumps(found, indent=1)
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
