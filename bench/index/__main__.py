"""`python -m bench.index`: speed of the global block index. One process, one thread, no Ray."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.environment import environment
from bench.index import assign, ingest

SAVED = Path(__file__).parents[1] / "results" / "index.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """0: every figure that is required was reached; 1: not; 2: usage."""
    options = parse(arguments)
    before = environment()
    taken = ingest.measure(options.entries, options.batch, options.rounds, _tell)
    placed = assign.measure(options.waves, _tell)
    rows = [*taken, *placed]
    lines = [*map(ingest.line, taken), *map(assign.line, placed)]
    print("\n".join(lines))
    config = {**before, "load_average_after": list(os.getloadavg())}
    result = {"rows": rows, "config": config}
    if options.save:
        SAVED.write_text(json.dumps(result, indent=1) + "\n")
    if options.json:
        print(json.dumps(result))
    return int(not all(row["reached"] for row in rows))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.index", description=__doc__)
    parser.add_argument("--entries", type=int, default=1 << 20, help="changes in a round of `ingest`")
    parser.add_argument("--batch", type=int, default=1024, help="changes in a message")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds, after one to warm up")
    parser.add_argument("--waves", type=int, default=30, help="waves placed, after one to warm up")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--save", action="store_true", help=f"write {SAVED.parent.name}/{SAVED.name}")
    options = parser.parse_args(arguments)
    if options.batch < 4 or options.entries < options.batch or min(options.rounds, options.waves) < 1:
        parser.error("batches have at least 4 changes, rounds at least one batch, and there is at least one round")
    return options


def _tell(what: str) -> None:
    """Progress goes to standard error, between measurements."""
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
