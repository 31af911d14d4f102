"""Folders of runs to look at: simulated ones, and one of hand-made trees."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

pytest.importorskip("pydantic")

from orchestrator import Orchestrator
from orchestrator.batch.attempt import result_row
from orchestrator.batch.inputs import Row
from orchestrator.batch.journal import Journal, journal_path
from orchestrator.batch.settings import begin
from search.result import SearchResult
from search.tree import SearchTree
from search.types import Cost, Outcome, Problem, Sample, Sampling, Verdict
from search.wave_log import WaveRecord


@pytest.fixture
def simulated(tmp_path: Path) -> Callable[..., Path]:
    """A folder with runs of `problems` problems by each of the strategies."""

    def make(problems: int = 4, strategies: Sequence[str] = ("mcts",), name: str = "out", **options) -> Path:
        rows = tmp_path / f"{name}.jsonl"
        rows.write_text(
            "".join(
                json.dumps({"id": f"p{i}", "question": f"What is {i} + {i}?", "answer": 2 * i}) + "\n"
                for i in range(problems)
            )
        )
        with Orchestrator(model="simulated", runtime="inline", engines=2) as orchestrator:
            for strategy in strategies:
                orchestrator.run_batch(rows, tmp_path / name, strategy, **options)
        return tmp_path / name

    return make


@pytest.fixture
def by_hand(tmp_path: Path) -> Callable[..., Path]:
    """A folder with one run of one problem, whose tree has `nodes` nodes of branching 2 with the given text."""

    def make(nodes: int, text: str = "step", problem_id: str = "p0", question: str = "What?") -> Path:
        out = tmp_path / "by-hand"
        folder = out / "runs" / "hand"
        begin(folder, {"strategy": "hand", "model": text}, question)
        problem = Problem(question, problem_id, "text", "5")
        tree, waves = _grow(problem, nodes, text)
        journal = Journal(journal_path(folder / "journal", problem_id), problem, "f", 0)
        for wave in waves:
            asyncio.run(journal.append(wave))
        leaf = max(tree.complete(), key=lambda node: node.depth)
        result = SearchResult(
            problem, text, tree.text(leaf), True, "done", "hand", 0, tree, Cost(generated=9), {}, leaf.id, {text: 2.0}
        )
        row = result_row(result)
        asyncio.run(journal.close({"row": row, "tree": tree.to_json()}))
        key = Row("x", problem_id, problem).key
        (out / "results.jsonl").write_text(json.dumps({**row, "run": "hand", "key": key}) + "\n")
        return out

    return make


def _grow(problem: Problem, nodes: int, text: str) -> tuple[SearchTree, list[WaveRecord]]:
    tree = SearchTree(problem, {"": (1, 2)}, Sampling())
    open_nodes, outcomes = [tree.root], []
    while len(tree) - 1 < nodes:
        node = open_nodes.pop(0)
        order = tree.expansion(node, 2)
        last = len(tree) + 1 >= nodes
        samples = tuple(
            Sample(
                f"{text} {node.id}.{i}\nAnswer: {text}" if last else f"{text} {node.id}.{i}",
                (7, i),
                "eos" if last else "step",
                i,
                -0.5,
                0.75,
                verdict=Verdict(0.5 + i / 4, "hand"),
            )
            for i in range(2)
        )
        outcome = Outcome(order.id, problem.id, node.id, samples, "engine-0", Cost(4, 3, 0, {"exact": 11}))
        open_nodes += tree.grow(outcome)
        outcomes.append(outcome)
    return tree, [WaveRecord(tuple(outcomes[i : i + 50])) for i in range(0, len(outcomes), 50)]
