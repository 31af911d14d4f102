"""A batch job in a process of its own, for tests that kill it: rows, folder, and a log of what engines generated."""

import os
import sys
import time
from collections.abc import Callable

from engine.simulated import SimulatedEngine
from orchestrator import JobOptions, Orchestrator


class LoggingEngine(SimulatedEngine):
    """Writes `expansion id, tokens` for every expansion; takes a few milliseconds a call."""

    def __init__(self, log: str) -> None:
        super().__init__(depth=6)
        self.log = log

    def expand(self, requests):
        time.sleep(0.002)
        results = super().expand(requests)
        lines = "".join(f"{result.id} {result.usage.generated}\n" for result in results)
        fd = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, lines.encode())
        os.close(fd)
        return results


def factory(log: str) -> Callable[[], LoggingEngine]:
    return lambda: LoggingEngine(log)


def main(rows: str, out: str, log: str, runtime: str = "inline") -> None:
    with Orchestrator(engine=factory(log), engines=4, runtime=runtime, concurrency=4) as orchestrator:
        orchestrator.run_batch(rows, out, "mcts", job=JobOptions(upload_s=0.2), simulations=12, leaves=2)


if __name__ == "__main__":
    main(*sys.argv[1:])
