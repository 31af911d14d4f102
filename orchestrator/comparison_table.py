"""A comparison as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from search.comparison import Comparison, Line

_HEAD = (
    "strategy", "accuracy", "95 % interval", "pass@n", "tokens", "verified", "s", "AUC", "AUC within", "won:lost", "p",
    "stopped by",
)  # fmt: skip


def table(comparison: Comparison) -> str:
    """A line a strategy, then warnings and how to read the columns."""
    lines = comparison.lines()
    rows = [_HEAD, *(_cells(line, comparison.baseline) for line in lines)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    text += ["", *(f"warning: {line.warning}" for line in lines if line.warning)]
    text += [f"warning: {line.strategy}: {line.failed} searches failed" for line in lines if line.failed]
    text.append(
        "pass@n: some finished path is right, whichever is chosen. tokens, verified, s: means a problem. AUC: P(the "
        "verifier scores a right finished path above a wrong one), of all, and of paths of one problem. won:lost: "
        f"problems that only this strategy, and only {comparison.baseline}, got right; p: exact McNemar test."
    )
    return "\n".join(text)


def _cells(line: Line, baseline: str) -> Sequence[str]:
    low, high = line.interval
    paired = line.strategy != baseline and line.p_value is not None
    return (
        line.strategy,
        _share(line.accuracy),
        f"{100 * low:.1f} - {100 * high:.1f}" if line.graded else "-",
        _share(line.oracle),
        f"{line.generated:.0f}",
        f"{line.verified:.0f}",
        f"{line.seconds:.2f}",
        _number(line.auc),
        _number(line.auc_within),
        f"{line.better}:{line.worse}" if paired else "-",
        f"{line.p_value:.3g}" if paired else "-",
        ", ".join(f"{reason} {count}" for reason, count in line.stop_reasons.items()),
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
