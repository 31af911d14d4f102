"""Placement decisions: as values of a `placement` event, and as text for `explain`, with every term of the cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from actors.placement import Placed
from orchestrator.batch.events import read_events
from orchestrator.batch.folder import Run
from orchestrator.batch.journal import JournalContent
from orchestrator.config import UsageError
from search.types import Outcome

_MAX_RIVALS = 8
Decision = Mapping[str, Any]


def plain(decision: Placed) -> dict[str, Any]:
    """JSON values of a decision: the order's id, the engine, the expected hit, and terms (`..._s`) in seconds.

    rivals: the cheapest of the engines that were not taken, where the decision names them.
    """
    row = _rounded(asdict(decision))
    if "rivals" in row:
        row["rivals"] = [_rounded(rival) for rival in sorted(row["rivals"], key=cost_of)[:_MAX_RIVALS]]
    return row


def cost_of(decision: Decision) -> float:
    """Seconds: the sum of the terms."""
    return sum(float(decision[name]) for name in terms_of(decision))


def terms_of(decision: Decision) -> list[str]:
    return [name for name in decision if name.endswith("_s") and name != "cost_s"]


def explain_text(run: Run, content: JournalContent, node_id: str) -> str:
    """Every placement of the order that grew a node, oldest first: an order is placed again when its engine fails.

    UsageError if the tree has no such node, or nothing is recorded of it.
    """
    outcome = _grown_by(content, node_id)
    problem = content.problem.id
    found = [
        (float(event["t"]), decision)
        for event in read_events(run.events, frozenset({"placement"}))
        if event.get("problem") == problem
        for decision in event["decisions"]
        if decision["id"] == outcome.expansion_id
    ]
    if not found:
        raise UsageError(f"run {run.name!r} has no placement of {outcome.expansion_id!r} on record")
    lines = [f"node {node_id} was grown by expansion {outcome.expansion_id} on {outcome.engine}"]
    for number, (_, decision) in enumerate(found, 1):
        again = f" (try {number} of {len(found)})" if len(found) > 1 else ""
        lines += [f"placed on {decision['actor']}{again}; seconds by term:", *_table(decision)]
    cost = outcome.cost
    lines.append(f"prefix tokens held: {cost.predicted_hit} predicted, {cost.actual_hit} found")
    return "\n".join(lines)


def _grown_by(content: JournalContent, node_id: str) -> Outcome:
    for wave in content.waves:
        for outcome in wave.outcomes:
            if any(node_id == f"{outcome.node_id}.{sample.index}" for sample in outcome.samples):
                return outcome
    raise UsageError(f"problem {content.problem.id!r} has no node {node_id!r} that an engine grew; see `show`")


def _table(decision: Decision) -> Iterator[str]:
    """The engine taken, marked, above its rivals, the cheapest first."""
    rows = [decision, *decision.get("rivals", ())]
    terms = terms_of(decision)
    head = ["engine", "hit", *(name.removesuffix("_s") for name in terms), "cost"]
    cells = [[f"{'* ' if row is decision else '  '}{row['actor']}", str(row["predicted_hit"])] for row in rows]
    for cell, row in zip(cells, rows, strict=True):
        cell += [f"{float(row.get(name, 0.0)):.3f}" for name in terms] + [f"{cost_of(row):.3f}"]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    for cell in [head, *cells]:
        yield "  ".join(
            text.ljust(width) if n == 0 else text.rjust(width)
            for n, (text, width) in enumerate(zip(cell, widths, strict=True))
        )


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: round(value, 6) if isinstance(value, float) else value for key, value in row.items()}
