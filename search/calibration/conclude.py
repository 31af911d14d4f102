"""From decisions to a record: fixed sequence testing over one rule's grid, one decision a problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from search.calibration.binomial import needed_n
from search.calibration.decisions import Counts, Decision, count
from search.calibration.record import CalibrationRecord, Loss, Setting
from search.calibration.sequence import Tested, fixed_sequence, loosest
from search.cgee import registry
from search.cgee.base import Draw


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the decisions, fixed before they are seen."""

    rule: str = "agreement"
    loss: Loss = "flip"
    alpha: float = 0.01
    delta: float = 0.05


class TooFewDecisionsError(ValueError):
    """No threshold could be accepted, whatever the losses; `needed` decisions could."""

    def __init__(self, question: Question, n: int) -> None:
        self.needed = needed_n(question.alpha, question.delta)
        super().__init__(
            f"{n} decisions are too few: alpha={question.alpha:g} and delta={question.delta:g} need at least "
            f"{self.needed} different problems"
        )


def require_enough(question: Question, n: int) -> None:
    """TooFewDecisionsError, which names the needed n, if even without a loss nothing could be accepted."""
    if n < needed_n(question.alpha, question.delta):
        raise TooFewDecisionsError(question, n)


def require_no_repeats(decisions: Sequence[Decision]) -> None:
    """ValueError if a problem counts twice: losses of repeats are not independent."""
    for name, keys in (("id", [d.problem_id for d in decisions]), ("text", [d.text for d in decisions])):
        repeated = [key for key, times in Counter(keys).items() if times > 1]
        if repeated:
            raise ValueError(f"one decision a problem: {name} {repeated[0]!r} is there more than once")


def examine(question: Question, decisions: Sequence[Decision]) -> list[tuple[Counts, Tested]]:
    """Counts and test of every candidate of the rule, strict to loose."""
    require_no_repeats(decisions)
    require_enough(question, len(decisions))
    counts = [count(decisions, question.rule, i) for i in range(len(registry.grid(question.rule)))]
    losses = [c.flips if question.loss == "flip" else c.harms for c in counts]
    tests = fixed_sequence(losses, len(decisions), question.alpha, question.delta)
    return list(zip(counts, tests, strict=True))


def conclude(
    question: Question, decisions: Sequence[Decision], setting: Setting, draw: Draw, date: str, command: str
) -> CalibrationRecord:
    """The record with the loosest accepted thresholds; with None, and the strictest's counts, if there are none."""
    rows = examine(question, decisions)
    best = loosest([tested for _, tested in rows])
    counts, test = rows[best or 0]
    known = all(branch.correct is not None for decision in decisions for branch in decision.branches)
    if question.loss == "harm" and not known:
        raise ValueError("loss 'harm' needs the right answer of every problem; use 'flip'")
    return CalibrationRecord(
        setting=setting,
        draw=draw,
        rule=question.rule,
        thresholds=None if best is None else dict(registry.grid(question.rule)[best]),
        loss=question.loss,
        alpha=question.alpha,
        delta=question.delta,
        n=len(decisions),
        k=test.losses,
        skips=counts.skips,
        flips=counts.flips,
        harms=counts.harms if known else None,
        date=date,
        command=command,
    )
