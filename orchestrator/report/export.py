"""A run in other programs' formats: trees, training trajectories, and a trace of who worked when."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from orchestrator.batch.folder import Run
from orchestrator.batch.journal import JournalContent
from orchestrator.config import UsageError
from orchestrator.report import drawing
from orchestrator.report.collect import tree_of
from orchestrator.report.requests import requests
from orchestrator.report.trees import add_answers, nodes_of, path_of
from search.checkers.grade import grade

FORMATS = ("json", "graphml", "dot", "svg", "png", "trajectories", "trace", "requests")
_PROCESSES = {1: "engines", 2: "problems"}
_ONE: Mapping[str, Callable[[Any], str | bytes]] = {"dot": drawing.dot, "svg": drawing.svg, "png": drawing.png}


def export(run: Run, kind: str, problem_id: str | None = None) -> Iterator[str | bytes]:
    """Parts of the file, in order. problem_id: only this problem; a picture is of one problem.

    UsageError for an unknown format or problem.
    """
    if kind not in FORMATS:
        raise UsageError(f"unknown format {kind!r}; choices: {', '.join(FORMATS)}")
    if kind == "trace":
        return iter([trace(run)])
    if kind in _ONE:
        try:
            return iter([_ONE[kind](tree_of(_single(run, problem_id))["nodes"])])
        except ValueError as error:
            raise UsageError(str(error)) from None
    contents = run.journals() if problem_id is None else iter([find(run, problem_id)])
    if kind == "trajectories":
        return (json.dumps(row, ensure_ascii=False) + "\n" for content in contents for row in trajectories(content))
    if kind == "requests":
        return requests(run, contents)
    if kind == "graphml":
        return iter([drawing.graphml({content.problem.id: tree_of(content)["nodes"] for content in contents})])
    return _json(run, contents)


def find(run: Run, problem_id: str) -> JournalContent:
    """The journal of a problem; UsageError if it has none."""
    content = run.journal(problem_id)
    if content is None:
        raise UsageError(f"run {run.name!r} has no tree of problem {problem_id!r}")
    return content


def trajectories(content: JournalContent) -> Iterator[dict[str, Any]]:
    """One row a sample that made a node: token ids, parent, reward (the verifier's score), log-probability sum.

    correct: of finished paths, where the right answer is known. chosen: on the path of the final answer.
    """
    nodes = nodes_of(content)
    add_answers(nodes, content.problem.kind)
    known = {node["id"]: node for node in nodes}
    row = content.finish["row"] if content.finish else {}
    path = path_of(nodes, row.get("node"))
    for outcome, sample in ((o, s) for wave in content.waves for o in wave.outcomes for s in o.samples):
        name = f"{outcome.node_id}.{sample.index}"
        if name not in known:
            continue
        finished = known[name]["complete"]
        yield {
            "problem": content.problem.id,
            "question": content.problem.text,
            "node": name,
            "parent": outcome.node_id,
            "token_ids": list(sample.token_ids),
            "asked": sample.asked,
            "text": sample.text,
            "reward": sample.verdict.score if sample.verdict else None,
            "logprob": sample.logprob,
            "finish": sample.finish,
            "multiplicity": sample.multiplicity,
            "correct": grade(content.problem, known[name].get("answer")) if finished else None,
            "chosen": name in path,
        }


def trace(run: Run) -> str:
    """Chrome's trace event format (open in Perfetto): engines at work, and problems from start to finish."""
    events: list[dict[str, Any]] = []
    began: dict[str, float] = {}
    lanes: dict[tuple[int, str], int] = {}
    zero = 0.0

    def span(process: int, name: str, lane: str, begins_s: float, ends_s: float) -> None:
        thread = lanes.setdefault((process, lane), len(lanes) + 1)
        times = {"ts": round(begins_s * 1e6), "dur": max(round((ends_s - begins_s) * 1e6), 0)}
        events.append({"name": name, "ph": "X", "pid": process, "tid": thread, **times})

    for event in run.happened(frozenset({"begin", "busy", "start", "finish"})):
        kind, now = event["kind"], float(event["t"])
        if kind == "begin":
            zero = now
        elif kind == "busy":
            span(1, "calls", str(event["engine"]), zero + event["begins_s"], zero + event["ends_s"])
        elif kind == "start":
            began[event["problem"]] = now
        elif event["problem"] in began:
            span(2, event["problem"], event["problem"], began.pop(event["problem"]), now)
    named = [
        {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}} for pid, name in _PROCESSES.items()
    ]
    named += [
        {"name": "thread_name", "ph": "M", "pid": process, "tid": thread, "args": {"name": lane}}
        for (process, lane), thread in lanes.items()
    ]
    return json.dumps({"traceEvents": [*named, *events], "displayTimeUnit": "ms"}) + "\n"


def _single(run: Run, problem_id: str | None) -> JournalContent:
    if problem_id is not None:
        return find(run, problem_id)
    contents = run.journals()
    first = next(contents, None)
    if first is None:
        raise UsageError(f"run {run.name!r} has no trees")
    if next(contents, None) is not None:
        raise UsageError(f"a picture is of one problem: give --id, such as --id {first.problem.id}")
    return first


def _json(run: Run, contents: Iterator[JournalContent]) -> Iterator[str]:
    yield f'{{"run": {json.dumps(run.name)}, "settings": {json.dumps(run.settings)}, "problems": [\n'
    for i, content in enumerate(contents):
        yield ("" if i == 0 else ",\n") + json.dumps(tree_of(content))
    yield "\n]}\n"
