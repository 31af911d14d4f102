"""Rows on disk, and jobs on simulated engines in this process."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def write_rows(tmp_path: Path) -> Callable[..., Path]:
    def write(rows: int | Sequence[Any] = 10, name: str = "rows.jsonl") -> Path:
        if isinstance(rows, int):
            rows = [{"id": f"p{i}", "question": f"What is {i} + {i}?", "answer": i} for i in range(rows)]
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


@pytest.fixture
def read_rows() -> Callable[[Path], list[dict]]:
    """Rows of a results file; every line is whole JSON."""

    def read(out: Path) -> list[dict]:
        text = (out / "results.jsonl").read_text()
        assert text == "" or text.endswith("\n")
        return [json.loads(line) for line in text.splitlines()]

    return read
