"""Moving KV against prefilling it: `python -m bench.transfer [--json] [--save]`, two engine actors on one machine.

For each length the first engine prefills a prompt, its KV goes to the second through the object store, and the second
prefills another prompt of that length. The break-even is where a line through the moves meets the prefill rate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import ray

from actors.link import Link
from actors.remote import RayEngine, RayTransport, start_engine, start_index
from actors.spec import EngineSpec
from bench.environment import environment
from bench.markdown import markdown
from engine.base import path_keys
from search.types import Boundary, Expansion, Sampling

_RESULTS = Path(__file__).parent / "results" / "transfer.json"
_LENGTHS = (64, 256, 1024, 4096)
_COLUMNS = ("tokens", "MB", "move s", "prefill s", "prefill / move")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--direct", choices=("nixl",), default=None, help="Ray's direct transport instead (GPUs)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    parser.add_argument("--save", action="store_true", help=f"write {_RESULTS.name}")
    args = parser.parse_args()
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        found = asyncio.run(_measure(args))
    finally:
        ray.shutdown()
    if args.save:
        _RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found) if args.json else _table(found))


async def _measure(args: argparse.Namespace) -> dict[str, Any]:
    spec = EngineSpec(args.model, device=args.device, dtype=args.dtype)
    index = start_index()
    gpus = 1.0 if args.device.startswith("cuda") else 0.0
    source, target = (start_engine(name, spec, index, 1, gpus, direct=args.direct is not None) for name in "ab")
    await asyncio.gather(source.ready(), target.ready())
    transport = RayTransport(args.direct)
    rows = []
    for length in _LENGTHS:
        times = [await _round(spec, transport, source, target, length, i) for i in range(-1, args.rounds)]
        moves, prefills = zip(*times[1:], strict=True)
        rows.append({"tokens": length, "move_s": median(moves), "prefill_s": median(prefills)})
    first, last = rows[0], rows[-1]
    tokens_per_s = (last["tokens"] - first["tokens"]) / (last["move_s"] - first["move_s"])
    link = Link(max(first["move_s"] - first["tokens"] / tokens_per_s, 0.0), tokens_per_s)
    prefill_rate = last["tokens"] / last["prefill_s"]
    per_token = spec.kv_bytes_per_token or 0
    return {
        "environment": environment(),
        "model": args.model,
        "dtype": args.dtype,
        "transport": args.direct or "object store",
        "kv_bytes_per_token": per_token,
        "rows": rows,
        "latency_s": link.latency_s,
        "gb_per_s": link.tokens_per_s * per_token / 1e9,
        "tokens_per_s": link.tokens_per_s,
        "prefill_rate": prefill_rate,
        "break_even_tokens": link.break_even(prefill_rate),
    }


async def _round(
    spec: EngineSpec, transport: RayTransport, source: RayEngine, target: RayEngine, length: int, number: int
) -> tuple[float, float]:
    """Seconds of the move, and of prefilling another prompt on the target."""
    moved, other = (_prompt(length, 2 * number + which) for which in (0, 1))
    await source.expand([_order(moved, f"m{length}-{number}")], "source")
    key = path_keys(spec.fingerprint, (moved,))[0]
    began = time.perf_counter()
    held = await transport.move(source, target, key, 0)
    move_s = time.perf_counter() - began
    if held != length - 1:
        raise RuntimeError(f"{held} of {length - 1} tokens arrived")
    outcome = (await target.expand([_order(other, f"o{length}-{number}")], "target"))[0]
    for engine, path in ((source, moved), (target, moved), (target, other)):
        await engine.release([path_keys(spec.fingerprint, (path,))[0]])
    return move_s, outcome.cost.seconds["prefill"]


def _prompt(length: int, number: int) -> tuple[int, ...]:
    return tuple((7 * i + 31 * number + 1000) % 40000 + 100 for i in range(length))


def _order(prompt: Sequence[int], name: str) -> Expansion:
    return Expansion(name, "p", name, (tuple(prompt),), 1, Sampling(max_tokens=1, boundary=Boundary.none()))


def _table(found: dict[str, Any]) -> str:
    cells = [
        (
            str(row["tokens"]),
            f"{row['tokens'] * found['kv_bytes_per_token'] / 1e6:.1f}",
            f"{row['move_s']:.3f}",
            f"{row['prefill_s']:.3f}",
            f"{row['prefill_s'] / row['move_s']:.1f}",
        )
        for row in found["rows"]
    ]
    return "\n".join(
        [
            markdown([_COLUMNS, *cells]),
            "",
            f"{found['gb_per_s']:.2f} GB/s behind {found['latency_s'] * 1000:.1f} ms; "
            f"break-even against {found['prefill_rate']:.0f} tokens/s at {found['break_even_tokens']:.0f} tokens",
        ]
    )


if __name__ == "__main__":
    main()
