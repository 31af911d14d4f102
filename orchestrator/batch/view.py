"""A `progress` event for people: one plain line, or a table for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from orchestrator.render import printable

Progress = Mapping[str, Any]


def plain_line(name: str, progress: Progress) -> str:
    """Everything that matters in one line."""
    parts = [
        f"{name}: problem {_finished(progress)}/{_total(progress)}",
        f"{progress['failed']} failed, {progress['running']} running",
        f"{progress['nodes']} nodes",
        f"{progress['tokens']} tokens, {progress['tokens_per_s']:.0f} tok/s",
        f"ETA {clock(progress['eta_s'])}",
    ]
    if progress["best_score"] is not None:
        parts.append(f"best score {progress['best_score']:.3f}")
    return printable(", ".join(parts))


def table(name: str, progress: Progress) -> Table:
    """The whole state: problems, tokens, reuse, skips, and each engine's share and load."""
    shown = Table(show_header=False, box=None, pad_edge=False, title=printable(name), title_justify="left")
    graded = progress["correct"] + progress["wrong"]
    right = f", {progress['correct']}/{graded} correct" if graded else ""
    done = f"{_finished(progress)}/{_total(progress)} done, {progress['failed']} failed, {progress['running']} running"
    shown.add_row("problems", f"{done}{right}, ETA {clock(progress['eta_s'])}")
    shown.add_row(
        "tokens",
        f"{progress['tokens']:,} generated, {progress['tokens_per_s']:.0f} tok/s, "
        f"{progress['prefilled']:,} prefilled, {progress['verified']:,} verified",
    )
    tiers = [f"{share(n, progress)} {tier}" for tier, n in sorted(progress["reused"].items())]
    best = "" if progress["best_score"] is None else f", best score {progress['best_score']:.3f}"
    shown.add_row("tree", f"{progress['nodes']:,} nodes{best}, {progress['saved']:,} verifications skipped")
    shown.add_row("reuse", ", ".join(map(printable, tiers)) or "none")
    idle = progress.get("idle", {})
    for engine, row in progress["engines"].items():
        load = f"{1 - idle[engine]:.0%} busy" if engine in idle else ""
        shown.add_row(printable(engine), f"{row['expansions']:,} expansions, {row['generated']:,} tokens, {load}")
    return shown


def share(tokens: int, progress: Progress) -> str:
    """Of all prompt tokens of rows, prefilled or not."""
    whole = progress["prefilled"] + sum(progress["reused"].values())
    return f"{tokens / whole:.0%}" if whole else "0%"


def clock(seconds: float | None) -> str:
    """Seconds as h:mm:ss; `?` for None."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _finished(progress: Progress) -> int:
    return int(progress["done"] + progress["failed"] + progress["skipped"])


def _total(progress: Progress) -> str:
    return "?" if progress["total"] is None else str(progress["total"])
