"""A driver for test_operations: solves, loses an engine, runs a batch job, prints what it counted, and waits."""

import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from orchestrator import Orchestrator

ENGINES = {"model": "simulated", "engines": 2, "gpus_per_engine": 0, "kv_budget_bytes": 500_000}


def main(folder: Path) -> None:
    counted: Counter[str] = Counter()
    with Orchestrator(**ENGINES) as orchestrator:
        for result in orchestrator.solve_many([f"What is {i} + {i}?" for i in range(4)], "tot", cgee="agreement"):
            assert result.error is None
            counted.update(predicted=result.cost.predicted_hit, actual=result.cost.actual_hit, problems=1)
            counted.update(skipped=result.skips.saved_verifications)
        rows = folder / "rows.jsonl"
        rows.write_text("".join(json.dumps({"id": i, "question": f"What is {i} * {i}?"}) + "\n" for i in range(3)))
        summary = orchestrator.run_batch(rows, folder / "out", "tot")
        pids = orchestrator.start()
        stats: dict[str, Any] = {name: dict(row) for name, row in orchestrator.stats().items()}
        print(json.dumps({"counted": counted, "stats": stats, "rows": summary.rows, "pids": pids}), flush=True)
        sys.stdin.readline()
        os.kill(pids["engine-1"], signal.SIGKILL)
        orchestrator.solve_many([f"What is {i} - {i}?" for i in range(4)], "tot")
        print(json.dumps({"failures": orchestrator.failures}), flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
