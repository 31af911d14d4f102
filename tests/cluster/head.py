"""A Ray head of one's own: own ports, own folders, no authentication on loopback; only its own processes are ended."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_START_S = 180.0


@dataclass(frozen=True)
class Head:
    """address: of the cluster. jobs: of the dashboard, which takes jobs. metrics: what Prometheus scrapes."""

    address: str
    jobs: str
    metrics: str
    environment: dict[str, str]

    def run(self, *command: str, timeout: float = 200, **more: str) -> subprocess.CompletedProcess[str]:
        """A command in another process, which knows the cluster as a user's shell would."""
        environment = {**self.environment, "RAY_ADDRESS": self.address, **more}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)

    def start(self, *command: str, **more: str) -> subprocess.Popen[str]:
        environment = {**self.environment, "RAY_ADDRESS": self.address, **more}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True
        )


@contextmanager
def ray_head() -> Iterator[Head]:
    """`ray start --head --block` with 4 CPUs. Paths are short: Ray's socket names have at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="rk", dir="/tmp"))
    port, dashboard, metrics, client, agent = _free_ports(5)
    environment = {
        **os.environ,
        "HOME": str(folder),
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_metrics_report_interval_ms": "500",
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    environment.pop("RAY_ADDRESS", None)
    command = [
        *("ray", "start", "--head", "--block", "--num-cpus=4", "--object-store-memory=100000000"),
        *(f"--port={port}", "--node-ip-address=127.0.0.1", f"--ray-client-server-port={client}"),
        *("--min-worker-port=0", "--max-worker-port=0", f"--metrics-export-port={metrics}"),
        *("--include-dashboard=true", f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}"),
        *("--disable-usage-stats", f"--temp-dir={folder}/ray"),
    ]
    log = (folder / "head.log").open("w")
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait(process, [port, dashboard, metrics], folder / "head.log")
        at = "127.0.0.1"
        yield Head(f"{at}:{port}", f"http://{at}:{dashboard}", f"http://{at}:{metrics}/metrics", environment)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _wait(process: subprocess.Popen[bytes], ports: list[int], log: Path) -> None:
    until = time.monotonic() + _START_S
    for port in ports:
        while True:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"ray start did not bring up port {port}: {log.read_text()[-2000:]}")
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.2)
