"""On a head as `ray start` makes it: jobs by `ray job submit`, metrics as Prometheus sees them, status from a shell."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

pytest.importorskip("ray")
parser = pytest.importorskip("prometheus_client.parser")
pytestmark = pytest.mark.cluster

from tests.cluster.head import ROOT, Head, ray_head

STATUS = (sys.executable, "-m", "orchestrator", "status")
SEEN_S = 120.0


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    with ray_head() as running:
        yield running


@pytest.fixture
def fresh() -> Iterator[Head]:
    """A head whose endpoint still tells nothing of drivers that came before."""
    with ray_head() as running:
        yield running


class Scrape:
    """One reading of the endpoint: the sum of a metric's samples over all processes, by the tags asked for."""

    def __init__(self, head: Head) -> None:
        with urlopen(head.metrics, timeout=30) as answer:
            families = parser.text_string_to_metric_families(answer.read().decode())
            self.samples = [sample for family in families for sample in family.samples]

    def __call__(self, name: str, **tags: str) -> float | None:
        found = [s.value for s in self.samples if s.name == name and tags.items() <= s.labels.items()]
        return sum(found) if found else None


def eventually(head: Head, right: Callable[[Scrape], Any], expected: Any) -> None:
    """Numbers reach the endpoint a little later than they are counted."""
    until = time.monotonic() + SEEN_S
    while (seen := right(Scrape(head))) != expected and time.monotonic() < until:
        time.sleep(0.5)
    assert seen == expected


def test_ray_job_submit_solves(head: Head):
    job = ("ray", "job", "submit", "--address", head.jobs, "--working-dir", str(ROOT), "--")
    solve = ("python", "solve.py", "What is 3 + 4?", "--model", "simulated", "--engines", "2", "--json", "-q")
    done = head.run(*job, *solve)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (result,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert result["answer"] is not None and result["error"] is None
    assert {node["engine"] for node in result["tree"]["nodes"] if node["engine"]} <= {"engine-0", "engine-1"}
    failed = head.run(*job, "python", "solve.py", "What is 3 + 4?", "--model", "no/such/model")
    assert failed.returncode != 0 and "no/such/model" in failed.stdout


def test_status_of_a_cluster_that_is_idle_or_gone(head: Head, tmp_path: Path):
    idle = head.run(*STATUS)
    assert (idle.returncode, idle.stdout) == (0, "no orchestrator runs on this cluster\n")
    for address in ("", "127.0.0.1:1"):
        gone = head.run(*STATUS, "--cluster", RAY_ADDRESS=address, RAY_TMPDIR=str(tmp_path))
        assert (gone.returncode, gone.stdout) == (3, "")
        assert "error: no Ray cluster answers" in gone.stderr


def test_metrics_and_status_say_what_the_driver_counted(fresh: Head, tmp_path: Path):
    head, command = fresh, (sys.executable, "-m", "tests.cluster.metered_driver", str(tmp_path))
    with head.start(*command) as driver:
        try:
            assert driver.stdin is not None
            check_numbers(head, said(driver))
            print(file=driver.stdin, flush=True)
            failures = [engine for engine, _ in said(driver)["failures"]]
            assert "engine-1" in failures
            count = failures.count("engine-1")
            eventually(head, lambda seen: seen("ray_rksc_failures_total", engine="engine-1"), count)
            print(file=driver.stdin, flush=True)
            assert driver.wait(120) == 0
        finally:
            driver.kill()


def said(driver: subprocess.Popen[str]) -> dict[str, Any]:
    """The driver's next line of JSON."""
    assert driver.stdout is not None
    lines = []
    for line in driver.stdout:
        if line.startswith("{"):
            return dict(json.loads(line))
        lines.append(line)
    raise AssertionError("".join(lines))


def check_numbers(head: Head, told: dict[str, Any]) -> None:
    counted, stats, name = told["counted"], told["stats"], "ray_rksc_"
    for engine, row in stats.items():
        for key, metric in (
            ("generated", "tokens_generated_total"),
            ("prefilled", "tokens_prefilled_total"),
            ("reused", "tokens_reused_total"),
            ("expansions", "expansions_total"),
            ("scores", "scores_total"),
            ("evicted", "evictions_total"),
            ("kv_bytes", "kv_bytes"),
        ):
            assert row[key] > 0 or key == "evicted", key
            if row[key]:
                eventually(head, lambda seen, m=metric, e=engine: seen(name + m, engine=e), row[key])
        eventually(head, lambda seen, e=engine: seen(f"{name}queue_length", engine=e), 0)
    assert sum(row["evicted"] for row in stats.values()) > 0  # where the larger trees grew
    assert counted["skipped"] > 0
    eventually(head, lambda seen: seen(f"{name}skipped_verifications_total", rule="agreement"), counted["skipped"])
    eventually(head, lambda seen: seen(f"{name}problems_total", outcome="done"), counted["problems"] + told["rows"])
    eventually(head, lambda seen: seen(f"{name}problems_running"), 0)
    eventually(head, lambda seen: seen(f"{name}job_rows", run="tot", state="done"), told["rows"])
    seen = Scrape(head)
    assert 0 < counted["actual"] < (seen(f"{name}hit_tokens_actual_total") or 0)
    assert (seen(f"{name}problem_seconds_count") or 0) == counted["problems"] + told["rows"]
    check_status(head, told)


def check_status(head: Head, told: dict[str, Any]) -> None:
    shown = head.run(*STATUS)
    assert shown.returncode == 0, shown.stderr
    assert ": 2 engines, driver " in shown.stdout and "index: up; segments " in shown.stdout
    for engine, row in told["stats"].items():
        (line,) = [line.split() for line in shown.stdout.splitlines() if line.split()[:1] == [engine]]
        assert line[2:4] == [str(told["pids"][engine]), str(row["incarnation"])]
        assert line[4] == "up" and line[-1] == str(row["generated"])
