"""What a finished search hands back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from search.cgee.base import SkipReport
from search.checkers.grade import grade
from search.strategies.selection import answer_of
from search.tree import SearchTree
from search.types import Cost, Problem

_DEVICE = ("prefill", "decode", "score")
"""Phases in which an engine works."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Answer and evidence of one search. Always the best so far; `error` is set when every expansion failed.

    stop_reason: done | exhausted | agreed | depth | no_answer | failed, or the budget that bound (tokens, seconds,
    expansions, nodes, verifications). engines: per engine the tokens it generated, prefilled, reused, its expansions.
    skips: verifications that CGEE left out.

    cost.seconds by phase: `queue` (orders on the way to an engine or waiting there), `prefill`, `decode` and `score` of
    engines, `verify` and `total` by the wall clock.
    """

    problem: Problem
    answer: str | None
    text: str
    complete: bool
    stop_reason: str
    strategy: str
    seed: int
    tree: SearchTree
    cost: Cost
    engines: Mapping[str, Mapping[str, int]]
    node_id: str | None = None
    votes: Mapping[str, float] = field(default_factory=dict)
    unused: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    error: str | None = None
    skips: SkipReport = field(default_factory=SkipReport)

    @property
    def correct(self) -> bool | None:
        """Whether the answer is right (`search.checkers.grade`); None where the problem does not say what is."""
        return grade(self.problem, self.answer)

    @property
    def judged(self) -> list[tuple[float, bool]]:
        """(score, whether it is right) of each verified finished path, for the verifier's AUC; [] without a truth."""
        graded = [(node.score, grade(self.problem, answer_of(self.tree, node))) for node in self.tree.complete()]
        return [(score, right) for score, right in graded if score is not None and right is not None]

    @property
    def wasted(self) -> int:
        """Generated tokens that are on no finished path: pruned, dead, cut and recalled branches, merged duplicates."""
        used = {step.id: step for node in self.tree.finished() for step in self.tree.path(node)}
        kept = sum(step.thought.generated for step in used.values())
        return max(self.cost.generated - kept, 0)

    def to_json(self) -> dict[str, Any]:
        """One JSON object; ids, texts and scores are equal between runs that promise equality."""
        cost = self.cost
        return {
            "id": self.problem.id,
            "question": self.problem.text,
            "answer": self.answer,
            "text": self.text,
            "correct": self.correct,
            "complete": self.complete,
            "stop_reason": self.stop_reason,
            "strategy": self.strategy,
            "seed": self.seed,
            "tokens": {
                "generated": cost.generated,
                "prefilled": cost.prefilled,
                "verified": cost.verified,
                "wasted": self.wasted,
                "saved": cost.saved,
                "reused": dict(cost.reused),
                "available_hit": cost.available_hit,
                "predicted_hit": cost.predicted_hit,
                "actual_hit": cost.actual_hit,
                "mispredicted": cost.mispredicted,
            },
            "skips": self.skips.to_json(),
            "judged": [list(pair) for pair in self.judged],
            "seconds": {phase: round(s, 4) for phase, s in cost.seconds.items()},
            "layers": {"exits": cost.exits, "run": cost.layer_rows, "full": cost.layer_rows_full},
            "device_seconds": round(sum(cost.seconds.get(name, 0.0) for name in _DEVICE), 4),
            "engines": {name: dict(row) for name, row in sorted(self.engines.items())},
            "node": self.node_id,
            "votes": dict(self.votes),
            "unused": dict(self.unused),
            "warnings": list(self.warnings),
            "error": self.error,
            "tree": self.tree.to_json(),
        }
