"""What a report shows of one run: totals, series for the plots, a line a problem, and trees with why an answer won."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from orchestrator.batch.events import read_events
from orchestrator.batch.folder import Run
from orchestrator.batch.journal import JournalContent, JournalError, read_journal
from orchestrator.report.trees import add_answers, nodes_of, path_of, rivals


@dataclass
class RunFacts:
    """Sums over a run's rows. rows: one a problem, small. hits: right or wrong, in the order of finishing.

    busy: (engine, begins_s, ends_s) of the newest process that worked on the run. judged: (score, right) of each
    verified finished path, a list a problem.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    hits: list[bool] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    seconds: Counter[str] = field(default_factory=Counter)
    reused: Counter[str] = field(default_factory=Counter)
    stops: Counter[str] = field(default_factory=Counter)
    engines: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    busy: list[tuple[str, float, float]] = field(default_factory=list)
    idle: dict[str, float] = field(default_factory=dict)
    judged: list[list[tuple[float, bool]]] = field(default_factory=list)


def facts_of(run: Run) -> RunFacts:
    """Read a run's rows and events once."""
    facts = RunFacts()
    for row in run.rows():
        _add(facts, row)
    if run.events.is_file():
        for event in read_events(run.events, frozenset({"begin", "busy", "progress"})):
            if event["kind"] == "begin":
                facts.busy, facts.idle = [], {}
            elif event["kind"] == "busy":
                facts.busy.append((str(event["engine"]), float(event["begins_s"]), float(event["ends_s"])))
            else:
                facts.idle = dict(event.get("idle", {}))
    return facts


def _add(facts: RunFacts, row: dict[str, Any]) -> None:
    tokens, error = row.get("tokens", {}), row.get("error")
    facts.stops[str(row.get("stop_reason"))] += 1
    facts.counts["failed" if error is not None else "done"] += 1
    generated = int(tokens.get("generated", 0))
    facts.rows.append(
        {
            "id": row["id"],
            "question": str(row.get("question", ""))[:300],
            "answer": row.get("answer"),
            "correct": row.get("correct"),
            "stop": row.get("stop_reason"),
            "tokens": generated,
            "seconds": row.get("seconds", {}).get("total"),
            "error": error,
        }
    )
    if row.get("correct") is not None:
        facts.hits.append(bool(row["correct"]))
    facts.judged.append([(float(score), bool(right)) for score, right in row.get("judged", [])])
    if error is None:
        facts.tokens.append(generated)
    for name in ("generated", "prefilled", "verified"):
        facts.counts[name] += int(tokens.get(name, 0))
    facts.reused.update(tokens.get("reused", {}))
    facts.seconds.update({phase: s for phase, s in row.get("seconds", {}).items() if phase not in ("total", "score")})
    facts.engines.update({name: e["generated"] for name, e in row.get("engines", {}).items()})


def trees_of(run: Run, facts: RunFacts, most: int) -> Iterator[dict[str, Any]]:
    """The first `most` trees: of rows with results, in order, then of problems half-grown, which get a row too."""
    seen = dict.fromkeys(row["id"] for row in facts.rows)
    found = (tree for name in seen if (tree := _finished(run, name)) is not None)
    yield from islice(found, most)
    for path in islice(run.journal_paths(without=seen), max(most - len(seen), 0)):
        try:
            content = read_journal(path)
        except JournalError:
            facts.counts["unreadable"] += 1
            continue
        if content is not None:
            facts.rows.append(_half_grown(content))
            yield tree_of(content)


def _finished(run: Run, problem_id: str) -> dict[str, Any] | None:
    try:
        content = run.journal(problem_id)
    except JournalError as error:
        return {"id": problem_id, "note": str(error), "nodes": [], "rivals": []}
    return None if content is None else tree_of(content)


def tree_of(content: JournalContent) -> dict[str, Any]:
    """A problem with its tree, as the page's script reads it."""
    row = dict(content.finish["row"]) if content.finish else {}
    nodes = nodes_of(content)
    add_answers(nodes, content.problem.kind)
    path = path_of(nodes, row.get("node"))
    for node in nodes:
        node["win"] = node["id"] in path
    return {
        "id": content.problem.id,
        "question": content.problem.text,
        "reference": content.problem.reference,
        "answer": row.get("answer"),
        "text": row.get("text", ""),
        "stop": row.get("stop_reason", "not finished"),
        "warnings": row.get("warnings", []),
        "rivals": rivals(nodes, row.get("votes", {}), content.problem.kind),
        "nodes": nodes,
    }


def _half_grown(content: JournalContent) -> dict[str, Any]:
    tokens = sum(outcome.cost.generated for wave in content.waves for outcome in wave.outcomes)
    return {
        "id": content.problem.id,
        "question": content.problem.text[:300],
        "answer": None,
        "correct": None,
        "stop": "not finished",
        "tokens": tokens,
        "seconds": content.waves[-1].seconds if content.waves else 0.0,
        "error": None,
    }
