"""A run as a trace of requests, in the format of the Mooncake traces, with parents and scores."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

from orchestrator.batch.folder import Run
from orchestrator.batch.journal import JournalContent
from search.types import Outcome

_BLOCK = 16

Segment = tuple[int, int]
"""(id, tokens) of a prompt or of one node's own tokens."""


def requests(run: Run, contents: Iterator[JournalContent]) -> Iterator[str]:
    """JSON a line, one for each sample that made a node: `timestamp` (ms since the job began), `input_length`,
    `output_length`, `hash_ids` of blocks of `block_tokens` tokens; and `id`, `parent`, `score`, `segments` and
    `output_id`, which name the path node by node. Texts are not in it.
    """
    began = {e["problem"]: float(e["t"]) for e in run.happened(frozenset({"start"}))}
    zero = min(began.values(), default=0.0)
    return (
        json.dumps(row) + "\n"
        for content in contents
        for row in _rows(content, began.get(content.problem.id, zero) - zero)
    )


def _rows(content: JournalContent, start_s: float) -> Iterator[dict[str, Any]]:
    problem = content.problem.id
    paths: dict[str, tuple[Segment, ...]] = {}
    asked_s = start_s
    for wave in content.waves:
        for outcome in wave.outcomes:
            path = paths.get(outcome.node_id)
            if path is None:
                paths[outcome.node_id] = path = ((_id(problem, "prompt"), _length(outcome)),)
            for sample in outcome.samples:
                if not sample.token_ids:
                    continue
                node = f"{outcome.node_id}.{sample.index}"
                before = (*path, (_id(problem, f"{node} asked"), sample.asked)) if sample.asked else path
                own = (_id(problem, node), sample.generated)
                paths[node] = (*before, own)
                yield {
                    "timestamp": round(asked_s * 1000),
                    "input_length": sum(tokens for _, tokens in before),
                    "output_length": own[1],
                    "hash_ids": _blocks(before),
                    "block_tokens": _BLOCK,
                    "id": f"{problem}/{node}",
                    "parent": f"{problem}/{outcome.node_id}" if len(path) > 1 else None,
                    "score": sample.verdict.score if sample.verdict else None,
                    "segments": [list(segment) for segment in before],
                    "output_id": own[0],
                }
        asked_s = start_s + wave.seconds


def _length(outcome: Outcome) -> int:
    """Tokens of the path that the outcome grew from: each of its rows, of which equal ones are one sample, reused or
    prefilled all but the last."""
    rows = max(sum(sample.multiplicity for sample in outcome.samples), 1)
    return (outcome.cost.prefilled + sum(outcome.cost.reused.values())) // rows + 1


def _blocks(path: Sequence[Segment]) -> list[int]:
    """Ids of the path's blocks: equal for paths that are equal up to a block's end."""
    names = [(segment, i) for segment, tokens in path for i in range(tokens)]
    ids, state = [], ""
    for at in range(0, len(names), _BLOCK):
        state = f"{state}{names[at : at + _BLOCK]}"
        ids.append(_id(state))
        state = str(ids[-1])
    return ids


def _id(*parts: str) -> int:
    return int.from_bytes(blake2b("\0".join(parts).encode(), digest_size=4).digest(), "little") >> 1
