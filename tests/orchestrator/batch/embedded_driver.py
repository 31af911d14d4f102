"""A batch job on the embedded model in a process of its own, for the test that kills it.

Its log has a line for every expansion that begins, with the most it can cost, and one for every expansion that ends.
"""

import os
import sys

from engine.local import LocalEngine
from orchestrator import Orchestrator


def logged(log: str):
    real = LocalEngine.expand

    def write(lines: list[str]) -> None:
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, "".join(lines).encode())
        os.close(fd)

    def expand(self, requests):
        write([f"{request.id} {len(request.streams) * request.rule.max_tokens} begun\n" for request in requests])
        results = real(self, requests)
        write([f"{result.id} {result.usage.generated}\n" for result in results])
        return results

    return expand


def main(rows: str, out: str, log: str, runtime: str = "inline") -> None:
    LocalEngine.expand = logged(log)
    options = {"model": "embedded", "dtype": "float32", "max_step_tokens": 4, "step_delimiter": None}
    with Orchestrator(runtime=runtime, engines=1, concurrency=2, **options) as orchestrator:
        orchestrator.run_batch(rows, out, "mcts", simulations=6, k=2, leaves=1, max_depth=3)


if __name__ == "__main__":
    main(*sys.argv[1:])
