"""Trees of a run as plain nodes, from journals: finished ones as they ended, half-grown ones as far as they got."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.batch.journal import JournalContent
from search.answers import extract
from search.types import ENDED, Outcome, Sample
from search.voting import Vote, tally

ROOT = "r"
Nodes = list[dict[str, Any]]
"""Nodes as in `SearchTree.to_json`, parents before children; some have more: `reused`, `prefilled`, `answer`."""
_MAX_VOTERS = 200
"""Finished paths that are grouped by equivalence; with more, answers are grouped as they are written."""


def nodes_of(content: JournalContent) -> Nodes:
    """The tree's nodes, each with what the engine reused and prefilled for the expansion that made it."""
    nodes = [dict(node) for node in content.finish["tree"]["nodes"]] if content.finish else list(_grown(content))
    made = {f"{o.node_id}.{s.index}": o for wave in content.waves for o in wave.outcomes for s in o.samples}
    for node in nodes:
        outcome = made.get(node["id"])
        if outcome is not None:
            node["reused"], node["prefilled"] = dict(outcome.cost.reused), outcome.cost.prefilled
    return nodes


def path_of(nodes: Sequence[Mapping[str, Any]], node_id: str | None) -> set[str]:
    """Ids from the root to a node, both included; empty without one."""
    parents = {node["id"]: node["parent"] for node in nodes}
    path: set[str] = set()
    while node_id is not None and node_id in parents and node_id not in path:
        path.add(node_id)
        node_id = parents[node_id]
    return path


def texts_of(nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The whole path's text by node id."""
    texts: dict[str, str] = {}
    for node in nodes:
        texts[node["id"]] = texts.get(node["parent"], "") + node["text"]
    return texts


def add_answers(nodes: Nodes, kind: str) -> None:
    """Each finished node's `answer`: the last one its path states, or None."""
    finished = [node for node in nodes if node["complete"]]
    texts = texts_of(nodes)
    for node in finished:
        text = texts[node["id"]]
        node["answer"] = extract(text, kind) if text.strip() else None


def rivals(nodes: Sequence[Mapping[str, Any]], votes: Mapping[str, float], kind: str) -> list[dict[str, Any]]:
    """Why an answer won: per group of equal answers its votes, its finished paths, and its best node by score.

    votes: those the strategy counted, under the form that was stated first; groups it counted come first. kind: of the
    problem.
    """
    finished = [node for node in nodes if node.get("answer") is not None]
    by_id = {node["id"]: node for node in finished}
    groups = []
    for answer, members in _groups(finished, kind):
        best = max((by_id[i] for i in members), key=lambda n: (n["score"] is not None, n["score"] or 0.0))
        form = next((by_id[i]["answer"] for i in members if by_id[i]["answer"] in votes), answer)
        groups.append(
            {
                "answer": form,
                "votes": votes.get(form),
                "paths": len(members),
                "best": best["id"],
                "score": best["score"],
            }
        )
    return sorted(groups, key=lambda g: (g["votes"] is None, -(g["votes"] or 0.0), -(g["score"] or 0.0)))


def _groups(finished: Sequence[Mapping[str, Any]], kind: str) -> list[tuple[str, tuple[str, ...]]]:
    if len(finished) <= _MAX_VOTERS:
        return [(g.answer, g.members) for g in tally([Vote(n["answer"], n["id"]) for n in finished], kind)]
    written: dict[str, tuple[str, ...]] = {}
    for node in finished:
        written[node["answer"]] = (*written.get(node["answer"], ()), node["id"])
    return list(written.items())


def _grown(content: JournalContent) -> Iterator[dict[str, Any]]:
    """Nodes of a search that has not ended, as the waves brought them."""
    yield _node(ROOT, None, Sample("", (), "step"), Outcome("", "", ""), "open")
    seen = {ROOT}
    for wave in content.waves:
        for outcome in wave.outcomes:
            for sample in outcome.samples:
                name = f"{outcome.node_id}.{sample.index}"
                if not sample.blank and name not in seen:
                    seen.add(name)
                    status = "pruned" if sample.finish == "pruned" else "terminal" if sample.finish in ENDED else "open"
                    yield _node(name, outcome.node_id, sample, outcome, status)


def _node(name: str, parent: str | None, sample: Sample, outcome: Outcome, status: str) -> dict[str, Any]:
    verdict = sample.verdict
    return {
        "id": name,
        "parent": parent,
        "depth": name.count("."),
        "text": sample.text,
        "score": verdict.score if verdict else None,
        "standing": verdict.standing if verdict else None,
        "visits": 0,
        "status": status,
        "engine": outcome.engine,
        "complete": status == "terminal",
        "finish": sample.finish if parent is not None else None,
        "tokens": sample.generated,
        "confidence": sample.confidence,
        "multiplicity": sample.multiplicity,
        "reason": verdict.error or verdict.skipped if verdict else None,
    }
