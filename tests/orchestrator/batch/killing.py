"""Starting the driver of `driver.py`, killing it, and comparing what it left."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[3]
DRIVER = Path(__file__).with_name("driver.py")
COMPARED = ("answer", "text", "correct", "complete", "stop_reason", "votes", "node", "unused", "warnings")


def start(
    rows: Path, out: Path | str, log: Path, runtime: str = "inline", driver: Path = DRIVER
) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(driver), str(rows), str(out), str(log), runtime]
    return subprocess.Popen(command, cwd=ROOT, env=environment)


def killed_at(
    target: int,
    delay_s: float,
    rows: Path,
    out: Path | str,
    log: Path,
    runtime: str = "inline",
    driver: Path = DRIVER,
    watched: Callable[[], Path] | None = None,
    done_again: bool = False,
) -> None:
    """Kill the driver a moment after it has `target` results; rows it found finished are not done again.

    watched: the folder with its results, where that is not `out`. done_again: finished rows may be lost, too.
    """
    folder = watched or (lambda: Path(out))
    finished, seen = results(folder()), _lines(log)
    process = start(rows, out, log, runtime, driver)
    deadline = time.monotonic() + 600
    while process.poll() is None and len(results(folder())) < target and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(delay_s)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    again = {line.split("/")[1] for line in _lines(log)[len(seen) :]}
    assert again and again <= {str(row) for row in range(1000)}
    assert done_again or not again & set(finished)


def results(out: Path) -> dict[str, dict]:
    """Whole rows by id; each id once."""
    data = (out / "results.jsonl").read_bytes() if (out / "results.jsonl").exists() else b""
    rows = [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row for row in rows}


def generated(log: Path) -> int:
    """Tokens of all processes. An expansion of which only the begin is there counts with all it may have cost."""
    tokens: dict[str, list[int]] = {}
    for line in _lines(log):
        name, number, *begun = line.split()
        entries = tokens.setdefault(name, [])
        if entries and entries[-1] < 0 and not begun:
            entries.pop()
        entries.append(-int(number) if begun else int(number))
    return sum(abs(number) for entries in tokens.values() for number in entries)


def assert_same_rows(calm: Path, killed: Path, count: int) -> None:
    expected, found = results(calm), results(killed)
    assert set(expected) == set(found) and len(found) == count
    for name, row in expected.items():
        assert {key: found[name][key] for key in COMPARED} == {key: row[key] for key in COMPARED}
        assert found[name]["tokens"]["generated"] == row["tokens"]["generated"]


def _lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []
