"""Jobs in this process, and rows without what may differ between equal runs."""

from pathlib import Path

from orchestrator import Orchestrator

INLINE = {"model": "simulated", "runtime": "inline"}


def run(rows: Path, out: Path, strategy="tot", *, config: dict | None = None, **call):
    with Orchestrator(**{**INLINE, **(config or {})}) as orchestrator:
        return orchestrator.run_batch(rows, out, strategy, **call)


def plain(rows: list[dict]) -> dict[str, dict]:
    """Rows by id without what may differ between equal runs: who did it, and how long it took."""
    drop = ("engines", "seconds", "device_seconds", "tokens", "key")
    return {row["id"]: {k: v for k, v in row.items() if k not in drop} for row in rows}
