"""What decides a run's results: kept beside them, so that a run goes on under the settings it was begun with, or not at
all. What only decides how fast they come (engines, rows, memory) may change.

Not `attention`, `device` or `dtype`: implementations round differently, and a tree's branches are drawn from numbers.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.batch.inputs import Columns
from orchestrator.config import UsageError
from search.budget import Budget
from search.strategies.base import Strategy

if TYPE_CHECKING:
    from orchestrator.orchestrator import Orchestrator

SCHEMA = 1
_MAX_CHARS = 1 << 20
"""Most characters of a run.json that are read."""
_FREE = frozenset(
    {
        "engines",
        "runtime",
        "threads",
        "gpus_per_engine",
        "wait_for_resources_s",
        "elastic",
        "max_engines",
        "kv_budget_bytes",
        "host_budget_bytes",
        "eviction",
        "max_rows",
        "rows_per_engine",
        "placement",
        "kv_transfer",
        "concurrency",
        "attempts",
        "verifier_gpus",
        "verifier_workers",
        "verifier_kv_budget_bytes",
        "call_timeout_s",
    }
)
"""Config keys that do not change what is found."""


def settings_of(
    orchestrator: Orchestrator,
    strategy: Strategy,
    budget: Budget,
    seed: int,
    cgee: str | None,
    columns: Columns,
) -> dict[str, Any]:
    """Flat JSON values: config keys by name, `strategy.*`, `budget.*`, digests of the model and its template, and
    `columns.*` where they are not the usual ones."""
    config = {k: v for k, v in orchestrator.config.model_dump(mode="json").items() if k not in _FREE}
    options: dict[str, Any] = asdict(strategy) if is_dataclass(strategy) else {}
    setting = asdict(orchestrator.setting)
    values = {
        **config,
        "cgee_record": None if (record := orchestrator.config.cgee_record) is None else _digest(Path(record)),
        "verifier": setting["verifier"],
        "weights": setting["model"],
        "template": setting["template"],
        "strategy": strategy.name,
        **{f"strategy.{name}": value for name, value in options.items()},
        **{f"budget.{name}": value for name, value in asdict(budget).items() if value is not None},
        **({} if columns == Columns() else {f"columns.{name}": value for name, value in asdict(columns).items()}),
        "seed": seed,
        "cgee": config["cgee"] if cgee is None else cgee,
    }
    plain: dict[str, Any] = json.loads(json.dumps(values, default=str))
    return plain


def _digest(file: Path) -> str:
    """What a file says counts, not where it is."""
    return blake2b(file.read_bytes(), digest_size=12).hexdigest()


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Digest of the settings, for the headers of journals."""
    return blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=12).hexdigest()


def check_name(name: str) -> str:
    """A run's name is a folder's name. UsageError otherwise."""
    if not re.fullmatch(r"[\w][\w.+-]{0,99}", name):
        raise UsageError(f"--name takes letters, digits, and . _ - +, at most 100; got {name!r}")
    return name


def begin(folder: Path, settings: Mapping[str, Any], source: str) -> None:
    """Write `run.json` into a run's folder; with one there, UsageError names the keys that differ from it."""
    file = folder / "run.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if file.exists():
            _require_same(file, settings)
            return
        aside = file.with_suffix(".new")
        text = json.dumps({"schema": SCHEMA, "input": source, "settings": dict(settings)}, indent=1)
        aside.write_text(text + "\n", encoding="utf-8")
        os.replace(aside, file)
    except OSError as error:
        raise UsageError(f"cannot write folder {str(folder)!r}: {error.strerror}") from None


def read_run(folder: Path) -> dict[str, Any]:
    """What `run.json` of a run's folder says. UsageError if it is not there or of another version."""
    file = folder / "run.json"
    try:
        with file.open(encoding="utf-8") as opened:
            found = json.loads(opened.read(_MAX_CHARS))
    except (OSError, ValueError) as error:
        raise UsageError(f"{str(file)!r} cannot be read: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("settings"), dict):
        raise UsageError(f"{str(file)!r} does not describe a run")
    if found.get("schema") != SCHEMA:
        raise UsageError(f"{str(file)!r} has schema version {found.get('schema')!r}, this program reads {SCHEMA}")
    return found


def _require_same(file: Path, here: Mapping[str, Any]) -> None:
    there = read_run(file.parent)["settings"]
    keys = [key for key in sorted({*there, *here}) if there.get(key) != here.get(key)]
    if keys:
        text = "; ".join(f"{key}: there {there.get(key)!r}, here {here.get(key)!r}" for key in keys)
        raise UsageError(
            f"{str(file.parent)!r} was begun with other settings: {text}; take these, another --name, or another --out"
        )
