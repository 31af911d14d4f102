"""A batch job that is interrupted and goes on, its report, and what it leaves on disk.

python examples/batch_job.py [FOLDER]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from orchestrator import JobOptions, Orchestrator
from orchestrator.report.command import make_report


def main(folder: str | None = None) -> None:
    work = Path(folder or tempfile.mkdtemp())
    rows, out = work / "problems.jsonl", work / "run"
    rows.write_text("".join(json.dumps({"id": i, "question": f"What is {i} + {i}?"}) + "\n" for i in range(20)))
    with Orchestrator(model="simulated", engines=4, runtime="inline") as orchestrator:
        # A limit of the job: it pauses behind the waves under way, as it does for SIGTERM.
        first = orchestrator.run_batch(rows, out, "mcts", job=JobOptions(max_tokens=1500), simulations=8)
        print(f"paused ({first.stop}) with {first.rows} of 20 rows")

        # The same call goes on: finished rows are skipped, half-grown trees continue.
        second = orchestrator.run_batch(rows, out, "mcts", simulations=8)
        print(f"{second.rows} rows, {second.skipped} of them from before, {second.failed} failed")

    answers = {row["id"]: row["answer"] for row in map(json.loads, (out / "results.jsonl").open())}
    print(f"{len(answers)} different ids in results.jsonl")
    make_report(out, out / "report.html")
    print(f"report: {(out / 'report.html').stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main(*sys.argv[1:])
