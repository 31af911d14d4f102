"""Problems in a Ray dataset, answers in a Ray dataset: every actor of `map_batches` has an engine of its own.

python examples/ray_data.py [FOLDER]

A row is searched on one engine only, and nothing is journalled: what Ray restarts is done again. `run_batch` spreads
the branches of a problem over all engines and can be resumed; its `results.jsonl` is a dataset, too.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray.data import ActorPoolStrategy

from orchestrator import Orchestrator
from search.types import Problem


class Solve:
    """Built once an actor. Give `num_gpus=1` to `map_batches` for a model on a GPU."""

    def __init__(self, model: str = "simulated") -> None:
        self.orchestrator = Orchestrator(model=model, runtime="inline", engines=1, concurrency=8)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        asked = zip(batch["id"], batch["question"], strict=True)
        problems = [Problem(str(question), str(id)) for id, question in asked]
        results = self.orchestrator.solve_many(problems, "mcts", simulations=6)
        return {
            "id": batch["id"],
            "answer": [result.answer for result in results],
            "tokens": [result.cost.generated for result in results],
        }


def main(folder: str | None = None) -> None:
    work = Path(folder or tempfile.mkdtemp())
    rows = work / "problems.jsonl"
    rows.write_text("".join(json.dumps({"id": i, "question": f"What is {i} + {i}?"}) + "\n" for i in range(24)))
    ray.data.DataContext.get_current().enable_progress_bars = False

    problems = ray.data.read_json(str(rows))
    answers = problems.map_batches(Solve, batch_size=8, compute=ActorPoolStrategy(size=2))
    print(f"{len(answers.take_all())} answers of map_batches")  # or write_parquet("s3://...")

    # The other way round: a dataset as the input of a job that can be resumed, and its rows as a dataset.
    problems.write_parquet(str(work / "input"))
    with Orchestrator(model="simulated", engines=2) as orchestrator:
        orchestrator.run_batch(work / "input" / "*.parquet", work / "run", "mcts", simulations=6)
    found = ray.data.read_json(str(work / "run" / "results.jsonl"))
    print(f"{found.count()} rows in run/results.jsonl")


if __name__ == "__main__":
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
    main(*sys.argv[1:])
