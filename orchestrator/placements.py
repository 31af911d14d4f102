"""Placement decisions: as values of a `placement` event, and as text for `explain`, with every term of the cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from actors.placement import Placed
from orchestrator.batch.folder import Run
from orchestrator.batch.journal import JournalContent
from orchestrator.config import UsageError
from search.types import Outcome

_MAX_RIVALS = 8
_TERMS = ("wait_s", "recompute_s", "transfer_s", "decode_s", "away_s")
Decision = Mapping[str, Any]


def plain(decision: Placed) -> dict[str, Any]:
    """JSON values of a decision: all its fields, and its cost in seconds.

    rivals: the cheapest of the engines that were not taken, where the decision names them.
    """
    row = {**_rounded(asdict(decision)), "cost_s": round(decision.cost_s, 6)}
    if others := getattr(decision, "rivals", ()):
        row["rivals"] = [plain(rival) for rival in sorted(others, key=lambda rival: rival.cost_s)[:_MAX_RIVALS]]
    return row


def explain_text(run: Run, content: JournalContent, node_id: str) -> str:
    """Every placement of the order that grew a node, oldest first: an order is placed again when its engine
    fails or is late, or when another one is idle.

    UsageError if the tree has no such node, or nothing is recorded of it.
    """
    outcome = _grown_by(content, node_id)
    problem = content.problem.id
    found = [
        (float(event["t"]), decision)
        for event in run.happened(frozenset({"placement"}))
        if event.get("problem") == problem
        for decision in event["decisions"]
        if decision["id"] == outcome.expansion_id
    ]
    if not found:
        raise UsageError(f"run {run.name!r} has no placement of {outcome.expansion_id!r} on record")
    lines = [f"node {node_id} was grown by expansion {outcome.expansion_id} on {outcome.engine}"]
    for number, (_, decision) in enumerate(found, 1):
        again = f" (try {number} of {len(found)})" if len(found) > 1 else ""
        lines += [f"placed on {decision['actor']}{again}{_by(decision)}; seconds by term:", *_table(decision)]
        if decision.get("runner_up"):
            lines.append(f"next best: {decision['runner_up']}, {float(decision['runner_up_s']):.3f}")
    cost = outcome.cost
    lines.append(f"prefix tokens held: {cost.predicted_hit} predicted, {cost.actual_hit} found")
    return "\n".join(lines)


def _grown_by(content: JournalContent, node_id: str) -> Outcome:
    for wave in content.waves:
        for outcome in wave.outcomes:
            if any(node_id == f"{outcome.node_id}.{sample.index}" for sample in outcome.samples):
                return outcome
    raise UsageError(f"problem {content.problem.id!r} has no node {node_id!r} that an engine grew; see `show`")


def _by(decision: Decision) -> str:
    """Who decided among how many, and from where KV is moved, as far as it is on record."""
    policy, count, source = (decision.get(key) for key in ("policy", "candidates", "source"))
    parts = [f" by {policy}" if policy else "", f" among {count} engines" if count else ""]
    return "".join(parts) + (f", KV from {source}" if source else "")


def _table(decision: Decision) -> Iterator[str]:
    """The engine taken, marked, above its rivals, the cheapest first. Of recompute and transfer the lesser counts."""
    rows = [decision, *decision.get("rivals", ())]
    terms = [name for name in _TERMS if any(row.get(name) is not None for row in rows)]
    head = ["engine", "hit", *(name.removesuffix("_s") for name in terms), "cost"]
    cells = [[f"{'* ' if row is decision else '  '}{row['actor']}", str(row["predicted_hit"])] for row in rows]
    for cell, row in zip(cells, rows, strict=True):
        cell += ["-" if row.get(name) is None else f"{float(row[name]):.3f}" for name in (*terms, "cost_s")]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    for cell in [head, *cells]:
        yield "  ".join(
            text.ljust(width) if n == 0 else text.rjust(width)
            for n, (text, width) in enumerate(zip(cell, widths, strict=True))
        )


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: round(value, 6) if isinstance(value, float) else value for key, value in row.items()}
