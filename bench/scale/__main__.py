"""Placement policies on simulated clusters, side by side: `python -m bench.scale [--quick] [--json] [--save]`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from actors.policies import registry
from bench.markdown import markdown
from bench.scale.device import Speeds
from bench.scale.regimes import REGIMES, Regime, grown
from bench.scale.simulate import Hardware, Run, search_trees, serve_trace
from bench.scale.trace import TraceError, read_trace

_RESULTS = Path(__file__).parents[1] / "results"
_SIZES = (64, 256, 1024, 2048)
_COLUMNS = (
    "regime",
    "policy",
    "engines",
    "makespan_s",
    "std_s",
    "hit_rate",
    "hit_rate_all",
    "busy",
    "expansions_per_engine_s",
)


def main(argv: Sequence[str] | None = None) -> int:
    args = _filled(_parser().parse_args(argv))
    rows = []
    try:
        for row in _rows(args):
            rows.append(row)
            if args.save:
                _save([row])
            if not args.json:
                print(f"{row['regime']} {row['policy']} {row['engines']}: {row['makespan_s']} s", file=sys.stderr)
    except (TraceError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    found = {"speeds": _speeds(Speeds()), "rows": rows}
    if args.json:
        print(json.dumps(found))
    else:
        print(markdown([_COLUMNS, *([str(row[name]) for name in _COLUMNS] for row in rows)]))
    return 0


def _save(fresh: Sequence[Mapping[str, Any]]) -> None:
    """Rows of earlier parts stay unless they are measured anew."""
    path = _RESULTS / "scale.json"
    rows = {_name(row): row for row in json.loads(path.read_text())["rows"]} if path.exists() else {}
    rows.update((_name(row), dict(row)) for row in fresh)
    found = {"speeds": _speeds(Speeds()), "rows": [rows[name] for name in sorted(rows)]}
    path.write_text(json.dumps(found, indent=1) + "\n")


def _name(row: Mapping[str, Any]) -> tuple[str, str, int]:
    return row["regime"], row["policy"], row["engines"]


def _rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if args.trace is not None:
        requests = read_trace(args.trace, args.limit)
        hardware = Hardware(args.engines, capacity=args.capacity)
        for policy in args.policies:
            yield _row("trace", policy, args.engines, [serve_trace(requests, policy, hardware, s) for s in args.seeds])
        return
    for name in args.regimes:
        regime = grown(REGIMES[name], args.engines)
        for policy in args.policies:
            yield _of(regime, policy, args.engines, args)
    for engines in args.sizes:
        regime = replace(REGIMES["A"], name="A, 2 trees an engine", trees=2 * engines)
        yield _of(regime, "rsbcm", engines, args, seeds=args.seeds[:1])


def _of(
    regime: Regime, policy: str, engines: int, args: argparse.Namespace, seeds: Sequence[int] | None = None
) -> dict[str, Any]:
    hardware = Hardware(engines, spread=regime.speeds, capacity=args.capacity)
    runs = [search_trees(regime, policy, hardware, seed) for seed in seeds or args.seeds]
    return _row(regime.name, policy, engines, runs)


def _row(regime: str, policy: str, engines: int, runs: Sequence[Run]) -> dict[str, Any]:
    makespans = [run.makespan_s for run in runs]
    return {
        "regime": regime,
        "policy": policy,
        "engines": engines,
        "seeds": len(runs),
        "makespan_s": round(fmean(makespans), 2),
        "std_s": round(pstdev(makespans), 2),
        "hit_rate": round(fmean(run.hit_rate for run in runs), 4),
        "hit_rate_all": round(fmean(run.hit_rate_all for run in runs), 4),
        "moved": round(fmean(run.moved for run in runs)),
        "prefilled": round(fmean(run.prefilled for run in runs)),
        "busy": round(fmean(run.busy for run in runs), 3),
        "expansions": round(fmean(run.expansions for run in runs)),
        "expansions_per_engine_s": round(fmean(run.expansions / engines / run.makespan_s for run in runs), 3),
        "simulated_in_s": round(fmean(run.real_s for run in runs), 1),
    }


def _speeds(speeds: Speeds) -> dict[str, float]:
    return {name: getattr(speeds, name) for name in Speeds.__slots__}


def _names(known: Sequence[str]) -> Any:
    def parse(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",") if name.strip()]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return names

    return parse


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    policies = sorted(registry.names())
    parser.add_argument("--quick", action="store_true", help="one seed, 16 engines, up to 128 in the second part")
    parser.add_argument("--regimes", type=_names(sorted(REGIMES)), default=sorted(REGIMES), metavar="A,B,...")
    parser.add_argument("--policies", type=_names(policies), default=policies, metavar=",".join(policies))
    parser.add_argument("--engines", type=int, default=None, help="of the regimes (64) or the trace (8)")
    parser.add_argument("--sizes", type=_numbers, default=None, metavar="64,256,...", help="of the second part")
    parser.add_argument("--seeds", type=_numbers, default=None, metavar="0,1,...")
    parser.add_argument("--capacity", type=int, default=None, help="tokens of KV on an engine (no bound)")
    parser.add_argument("--trace", type=Path, default=None, help="replay this file of requests instead")
    parser.add_argument("--limit", type=int, default=None, help="only the first requests of the trace")
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    parser.add_argument("--save", action="store_true", help="put the rows into bench/results/scale.json")
    return parser


def _filled(args: argparse.Namespace) -> argparse.Namespace:
    quick = args.quick
    args.engines = args.engines or (8 if args.trace else 16 if quick else 64)
    args.seeds = args.seeds if args.seeds is not None else [0] if quick else [0, 1, 2, 3, 4]
    args.sizes = args.sizes if args.sizes is not None else [16, 128] if quick else list(_SIZES)
    return args


if __name__ == "__main__":
    sys.exit(main())
