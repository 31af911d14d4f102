"""Searches compared on the same problems: what one run leaves for the statistics, and the statistics of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from search.calibration.binomial import clopper_pearson
from search.checkers.grade import grade
from search.paired import mcnemar
from search.result import SearchResult
from search.strategies.selection import answer_of
from search.verifiers.auc import auc, auc_within


@dataclass(frozen=True)
class Record:
    """One problem under one strategy. correct: None where the problem does not say what is right.

    oracle: some finished path is right. scored: (score, right) of each finished path that has a score.
    """

    strategy: str
    problem_id: str
    answer: str | None
    correct: bool | None
    oracle: bool | None
    generated: int
    verified: int
    prefilled: int
    saved: int
    seconds: float
    stop_reason: str
    scored: tuple[tuple[float, bool], ...] = ()
    error: str | None = None

    @classmethod
    def of(cls, label: str, found: SearchResult) -> Record:
        tree, problem = found.tree, found.problem
        graded = [(node, grade(problem, answer_of(tree, node))) for node in tree.complete()]
        known = [right for _, right in graded if right is not None]
        correct = found.correct
        return cls(
            strategy=label,
            problem_id=problem.id,
            answer=found.answer,
            correct=correct,
            oracle=None if correct is None else correct or any(known),
            generated=found.cost.generated,
            verified=found.cost.verified,
            prefilled=found.cost.prefilled,
            saved=found.cost.saved,
            seconds=round(found.cost.seconds.get("total", 0.0), 4),
            stop_reason=found.stop_reason,
            scored=tuple((node.score, right) for node, right in graded if node.score is not None and right is not None),
            error=found.error,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Record:
        """TypeError for a row that is no record."""
        return cls(**{**row, "scored": tuple((score, right) for score, right in row["scored"])})


@dataclass(frozen=True)
class Line:
    """One strategy's line. accuracy and oracle: shares of the problems that can be graded, None without any; interval:
    exact 95 % (Clopper-Pearson). generated, verified, seconds: means a problem. auc: of the verifier over all finished
    paths; auc_within: comparing paths of one problem only, which is what a choice among them depends on. better, worse,
    p_value: problems that only this strategy, and only the baseline, got right, and the exact McNemar test of it.
    """

    strategy: str
    problems: int
    graded: int
    accuracy: float | None
    interval: tuple[float, float]
    oracle: float | None
    generated: float
    verified: float
    saved: float
    seconds: float
    auc: float | None
    auc_within: float | None
    stop_reasons: Mapping[str, int]
    failed: int
    better: int = 0
    worse: int = 0
    p_value: float | None = None
    warning: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Comparison:
    """Records of several strategies; `baseline` is what the others are tested against."""

    baseline: str
    records: dict[str, list[Record]] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        self.records.setdefault(record.strategy, []).append(record)

    def lines(self) -> list[Line]:
        return [self._line(label, records) for label, records in self.records.items()]

    def _line(self, label: str, records: Sequence[Record]) -> Line:
        graded = [record for record in records if record.correct is not None]
        right = sum(bool(record.correct) for record in graded)
        scored = [record.scored for record in records]
        line = Line(
            strategy=label,
            problems=len(records),
            graded=len(graded),
            accuracy=right / len(graded) if graded else None,
            interval=clopper_pearson(right, len(graded)),
            oracle=sum(bool(record.oracle) for record in graded) / len(graded) if graded else None,
            generated=_mean([record.generated for record in records]),
            verified=_mean([record.verified for record in records]),
            saved=_mean([record.saved for record in records]),
            seconds=_mean([record.seconds for record in records]),
            auc=auc([pair for pairs in scored for pair in pairs]),
            auc_within=auc_within(scored),
            stop_reasons=dict(Counter(record.stop_reason for record in records).most_common()),
            failed=sum(record.error is not None for record in records),
        )
        return line if label == self.baseline else self._against_baseline(line, graded)

    def _against_baseline(self, line: Line, graded: Sequence[Record]) -> Line:
        base = {r.problem_id: r.correct for r in self.records.get(self.baseline, []) if r.correct is not None}
        pairs = [(bool(r.correct), bool(base[r.problem_id])) for r in graded if r.problem_id in base]
        if not pairs:
            return line
        better, worse = sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)
        p_value = mcnemar(better, worse)
        warning = None
        if worse > better:
            warning = (
                f"{line.strategy} is below {self.baseline}: {worse} problems lost and {better} won of {len(pairs)} "
                f"(p = {p_value:.3g}, {'more than chance' if p_value < 0.05 else 'may be chance'})"
            )
        return Line(**{**line.to_json(), "better": better, "worse": worse, "p_value": p_value, "warning": warning})


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
