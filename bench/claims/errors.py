"""How often the paper's rule skips, and what skipping changes, on problems with known answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bench.claims.problems import HINTS, Question
from bench.claims.rows import Paper, Row
from bench.claims.skipping import Decision
from engine.base import BranchRequest, BranchResult, ScoreQuery, StepRule
from search.calibration.binomial import clopper_pearson
from search.prompts import ANSWER_QUESTION

WAVE = 4
NEW_TOKENS = 32
_BOUND = "95 % Clopper-Pearson"
_PAPER_SKIPS = [0.42, 0.92]


def decide(engine: Any, questions: Sequence[Question], tell: Callable[[str], None]) -> list[Decision]:
    """A wave of branches for each question, greedy behind each hint; every branch is verified by continuation."""
    decisions: list[Decision] = []
    for at in range(0, len(questions), WAVE):
        tell(f"skipping: {at} of {len(questions)} problems")
        decisions += _wave(engine, questions[at : at + WAVE])
        engine.release([event.key for event in engine.snapshot()])
    return decisions


def _wave(engine: Any, questions: Sequence[Question]) -> list[Decision]:
    requests = [_request(engine, question, hint) for question in questions for hint in HINTS]
    grown = engine.expand(requests)
    follow_up = engine.codec.next_turn(ANSWER_QUESTION)
    asks = [
        ScoreQuery(request.id, (*request.path, result.branches[0].token_ids), follow_up)
        for request, result in zip(requests, _checked(grown), strict=True)
    ]
    scores = [score.p_yes for score in _checked(engine.score(asks))]
    size = len(HINTS)
    return [
        _decision(question, grown[i * size : (i + 1) * size], scores[i * size : (i + 1) * size])
        for i, question in enumerate(questions)
    ]


def _request(engine: Any, question: Question, hint: str) -> BranchRequest:
    prompt = tuple(engine.codec.encode(engine.codec.render(question.messages(hint))))
    return BranchRequest(f"{question.text}/{hint}", (prompt,), (0,), StepRule(max_tokens=NEW_TOKENS), temperature=0.0)


def _decision(question: Question, grown: Sequence[BranchResult], scores: Sequence[float]) -> Decision:
    branches = [result.branches[0] for result in grown]
    confidences = tuple(branch.confidence or 0.0 for branch in branches)
    right = tuple(question.right(branch.text) for branch in branches)
    return Decision(question.family, confidences, tuple(scores), right)


def _checked(results: Sequence[Any]) -> Sequence[Any]:
    errors = [result.error for result in results if result.error]
    if errors:
        raise RuntimeError(errors[0])
    return results


def rows(decisions: Sequence[Decision]) -> list[Row]:
    """Skip rates by family, then flips, harm, errors and benefit over all decisions."""
    rule = "paper's rule and defaults, mean top-1 probability of up to 32 greedy tokens, 8 hints"
    families = dict.fromkeys(decision.family for decision in decisions)
    found = [
        _share(
            f"skip_rate_{family.replace('-', '_')}", _PAPER_SKIPS, of, lambda d: d.skipped, f"decisions skipped; {rule}"
        )
        for family in families
        if (of := [d for d in decisions if d.family == family])
    ]
    skipped = [decision for decision in decisions if decision.skipped]
    against = "against verifying every branch by continuation, of all decisions"
    return [
        *found,
        _share("flip_rate", None, decisions, lambda d: d.flip, f"skipping selects another branch, {against}"),
        _share("flip_rate_of_skipped", None, skipped, lambda d: d.flip, "flips, of the skipped decisions"),
        _share("harm_rate", None, decisions, lambda d: d.harm, f"flips where full verification was right, {against}"),
        _share("cgee_induced_errors", 0.0037, decisions, lambda d: d.error, f"a right answer became wrong, {against}"),
        _share("benefit_rate", None, decisions, lambda d: d.benefit, f"a wrong answer became right, {against}"),
        _share(
            "right_with_full_verification", None, decisions, lambda d: d.right[d.verified], "selected branch is right"
        ),
        _share("right_with_skipping", None, decisions, lambda d: d.right[d.selected], "selected branch is right"),
        _share("right_by_any_branch", None, decisions, lambda d: any(d.right), "some branch is right: room to select"),
    ]


def _share(
    claim: str, paper: Paper, decisions: Sequence[Decision], holds: Callable[[Decision], bool], text: str
) -> Row:
    k, n = sum(map(holds, decisions)), len(decisions)
    return Row(claim, paper, k / n if n else None, n, *clopper_pearson(k, n), f"{text}; {k} of {n}; {_BOUND}")
