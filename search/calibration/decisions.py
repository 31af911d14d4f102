"""Decisions of a calibration: what each candidate threshold would have selected, against full verification."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

from search.calibration.record import Loss, built
from search.cgee import registry
from search.cgee.base import Draw, Wave
from search.cgee.decision import answer_groups, flipped, select
from search.cgee.skipping import contender_of
from search.checkers.grade import grade
from search.result import SearchResult
from search.types import Problem


@dataclass(frozen=True, slots=True)
class Branch:
    """One verified branch. group: number of its group of equivalent answers; correct: None without a reference."""

    answer: str | None
    group: int | None
    complete: bool
    count: int
    confidence: float | None
    score: float | None
    correct: bool | None


@dataclass(frozen=True, slots=True)
class Decision:
    """One problem's selection among its branches, by index. text: digest of the problem's text.

    full: by the verifier's scores. choices: for each rule and candidate, in order of its grid, what is selected without
    verification; None where the candidate does not skip. verified: tokens fed for verification.
    """

    problem_id: str
    text: str
    branches: tuple[Branch, ...]
    full: int | None
    choices: Mapping[str, tuple[int | None, ...]]
    verified: int

    def lost(self, rule: str, candidate: int, loss: Loss) -> bool:
        """The 0/1 loss of a candidate; what is not skipped loses nothing."""
        chosen = self.choices[rule][candidate]
        groups = [branch.group for branch in self.branches]
        if chosen is None or not flipped(groups, self.full, chosen):
            return False
        return loss == "flip" or self._right(self.full)

    def gained(self, rule: str, candidate: int) -> bool:
        """A flip from a wrong branch to a right one."""
        return self.lost(rule, candidate, "flip") and self._right(self.choices[rule][candidate])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Any, where: str) -> Decision:
        """RecordError says what is wrong; `where` names the row."""
        row = built(cls, values, where)
        branches = tuple(built(Branch, branch, f"{where}, branch") for branch in row.branches)
        choices = {rule: tuple(chosen) for rule, chosen in row.choices.items()}
        return cls(row.problem_id, row.text, branches, row.full, choices, row.verified)

    def _right(self, index: int | None) -> bool:
        return index is not None and bool(self.branches[index].correct)


@dataclass(frozen=True, slots=True)
class Counts:
    """Of n decisions: how many a candidate skips, flips, flips for the worse and for the better."""

    n: int
    skips: int
    flips: int
    harms: int
    gains: int


def decide(result: SearchResult, rules: Sequence[str] = registry.CALIBRATABLE) -> Decision:
    """The decision of a finished search that drew all branches from the root in one wave and verified each.

    ValueError if there is no branch, or one that was not scored.
    """
    tree = result.tree
    nodes = tree.children(tree.root)
    contenders = tuple(contender_of(tree, node) for node in nodes)
    if not nodes or any(node.score is None for node in nodes):
        raise ValueError("not every branch was verified" if nodes else "every branch was blank")
    wave = Wave(result.problem.id, contenders, draw=Draw.of(list(tree.asked.values())))
    groups = answer_groups(contenders)
    branches = tuple(
        Branch(
            answer=contender.answer,
            group=group,
            complete=contender.complete,
            count=contender.count,
            confidence=contender.confidence,
            score=node.score,
            correct=grade(result.problem, contender.answer),
        )
        for contender, node, group in zip(contenders, nodes, groups, strict=True)
    )
    full = select(contenders, [node.score for node in nodes])
    choices = {rule: tuple(_choices(rule, wave)) for rule in rules}
    return Decision(result.problem.id, text_key(result.problem), branches, full, choices, result.cost.verified)


def text_key(problem: Problem) -> str:
    """Digest of a problem's text, white space aside: equal texts are one problem."""
    return blake2b(" ".join(problem.text.split()).encode(), digest_size=12).hexdigest()


def count(decisions: Sequence[Decision], rule: str, candidate: int) -> Counts:
    """What one candidate would have done."""

    def total(flags: Iterable[bool]) -> int:
        return sum(flags)

    return Counts(
        n=len(decisions),
        skips=total(d.choices[rule][candidate] is not None for d in decisions),
        flips=total(d.lost(rule, candidate, "flip") for d in decisions),
        harms=total(d.lost(rule, candidate, "harm") for d in decisions),
        gains=total(d.gained(rule, candidate) for d in decisions),
    )


def _choices(rule: str, wave: Wave) -> Iterable[int | None]:
    for thresholds in registry.grid(rule):
        skip = registry.create(rule, **thresholds).decide(wave)
        yield select(wave.contenders, skip.standings) if skip else None
