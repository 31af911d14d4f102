"""`python -m bench.claims`: the claims of the RKSC paper, each beside the figure measured here."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.claims.problems import DATA
from bench.claims.rows import Row, table
from bench.conditions import Setup
from bench.environment import environment

SAVED = Path(__file__).parents[1] / "results" / "claims.json"
PARTS = ("speed", "skipping", "pressure", "phrasing", "sigma", "variants")


def main(arguments: Sequence[str] | None = None) -> int:
    """0: all done; 1: float32 outputs or verdicts differ between conditions; 2: usage."""
    from engine.models import ModelNotFoundError, resolve

    options = parse(arguments)
    try:
        setup = Setup(resolve(options.model), options.dtype, options.threads, options.device)
    except ModelNotFoundError as error:
        print(f"bench.claims: {error}", file=sys.stderr)
        return 2
    from bench.claims.suite import Suite

    before = environment()
    suite = Suite(setup, options, _tell)
    rows, seconds = _run(suite, options.parts)
    config = {**before, "load_average_after": list(os.getloadavg()), **suite.config, "part_seconds": seconds}
    print(table(rows))
    print(f"load average {before['load_average']} before, {config['load_average_after']} after")
    for failure in suite.failures:
        print(f"bench.claims: {failure}", file=sys.stderr)
    result = json.dumps({"rows": [row.as_dict() for row in rows], "config": config, "failures": suite.failures})
    if options.save:
        SAVED.parent.mkdir(exist_ok=True)
        SAVED.write_text(json.dumps(json.loads(result), indent=1) + "\n")
    if options.json:
        print(result)
    return int(options.dtype == "float32" and bool(suite.failures))


def _run(suite: Any, names: Sequence[str]) -> tuple[list[Row], dict[str, float]]:
    """Rows of all parts, and the wall-clock seconds of each part."""
    rows: list[Row] = []
    seconds = {}
    parts: Mapping[str, Callable[[], list[Row]]] = {name: getattr(suite, name) for name in names}
    for name, part in parts.items():
        began = perf_counter()
        rows += part()
        seconds[name] = perf_counter() - began
    return rows, seconds


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.claims", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, problems and seeds")
    parser.add_argument("--parts", type=_parts, default=PARTS, help=", ".join(PARTS))
    parser.add_argument("--prefix", type=int, default=1024, help="tokens of the shared prefix")
    parser.add_argument("--branches", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=32, help="tokens drawn for each branch")
    parser.add_argument("--rounds", type=int, help="timed rounds; default 5, quick 3")
    parser.add_argument("--problems", type=int, help="problems of each set; default 60, quick 12")
    parser.add_argument("--seeds", type=int, help="seeds of the search on the model; default 5, quick 1")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with gsm8k.jsonl and arc_challenge.jsonl")
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--save", action="store_true", help=f"write {SAVED.parent.name}/{SAVED.name}")
    options = parser.parse_args(arguments)
    for name, full, quick in (("rounds", 5, 3), ("problems", 60, 12), ("seeds", 5, 1)):
        if getattr(options, name) is None:
            setattr(options, name, quick if options.quick else full)
    sizes = (options.rounds, options.problems, options.seeds, options.threads, options.new_tokens, options.prefix)
    if min(sizes) < 1 or options.branches < 2:
        parser.error("branches must be at least 2, and every other size at least 1")
    return options


def _parts(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown part {unknown[0]!r}; choices: {', '.join(PARTS)}")
    return names


def _tell(what: str) -> None:
    """Progress goes to standard error, between measurements."""
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
