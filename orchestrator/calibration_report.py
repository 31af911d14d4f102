"""A calibration as plain text: each candidate's counts and test, what the verifier is worth, and what was accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from search.calibration.binomial import clopper_pearson
from search.calibration.conclude import Question, examine
from search.calibration.decisions import Decision
from search.calibration.record import CalibrationRecord
from search.cgee import registry
from search.verifiers.auc import auc, auc_within


def report(question: Question, decisions: Sequence[Decision], record: CalibrationRecord) -> str:
    """What `calibrate` prints."""
    branches = sum(branch.count for decision in decisions for branch in decision.branches)
    return "\n".join(
        [
            f"model {record.setting.model} {record.setting.dtype}, family {record.setting.family}",
            f"{len(decisions)} decisions of {record.draw.branches} branches ({branches} with text), "
            f"{sum(decision.verified for decision in decisions)} tokens verified",
            *candidate_lines(question, decisions),
            verifier_line(decisions),
            verdict_line(record),
        ]
    )


def candidate_lines(question: Question, decisions: Sequence[Decision]) -> list[str]:
    """One line a candidate, strict to loose; `+` marks the accepted ones."""
    lines = [f"rule {question.rule}, strict to loose: skips, flips, harms, gains, p-value of rate > {question.alpha:g}"]
    rows = zip(registry.grid(question.rule), examine(question, decisions), strict=True)
    for thresholds, (counts, test) in rows:
        figures = f"{counts.skips:5} {counts.flips:5} {counts.harms:5} {counts.gains:5}"
        lines.append(f"{'+' if test.accepted else ' '} {figures}  {test.p_value:.4f}  {_named(thresholds)}")
    return lines


def verifier_line(decisions: Sequence[Decision]) -> str:
    """AUC of the verifier's scores against truth, over all branches and within problems."""
    problems = [
        [(b.score, b.correct) for b in decision.branches if b.score is not None and b.correct is not None]
        for decision in decisions
    ]
    pairs = [pair for problem in problems for pair in problem]
    right = sum(correct for _, correct in pairs)
    return (
        f"verifier AUC: {_figure(auc(pairs))} over all branches, {_figure(auc_within(problems))} within a problem "
        f"({right} right of {len(pairs)} with a known answer)"
    )


def verdict_line(record: CalibrationRecord) -> str:
    """What the record allows, and what it does not say."""
    if record.thresholds is None:
        return f"accepted: nothing. {record.k} {record.loss}s in {record.n} decisions at the strictest thresholds"
    if record.skips == 0:
        return f"accepted: {_named(record.thresholds)}, which skip none of the {record.n} decisions"
    low, high = clopper_pearson(record.flips, record.skips)
    harms = "" if record.harms is None else f", {record.harms} harms"
    return (
        f"accepted: {_named(record.thresholds)}. It skips {record.skips} of {record.n} decisions with {record.flips} "
        f"flips{harms}; {record.loss}s per decision <= {record.alpha:g} with probability {1 - record.delta:g}. "
        f"Of the skipped alone, 95 % interval of the flip rate: {low:.4f} to {high:.4f}"
    )


def _named(thresholds: Mapping[str, float]) -> str:
    return " ".join(f"{name}={value:g}" for name, value in thresholds.items())


def _figure(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
