"""Whether an answer is right."""

from __future__ import annotations

from search.answers import equivalent, meant
from search.types import Problem


def grade(problem: Problem, answer: str | None) -> bool | None:
    """By the problem's checker, else by equivalence with its reference or what that states; no answer is not right.

    Answers of the kind `exact` are compared letter by letter, white space at the ends aside. None where nothing can be
    said: there is neither checker nor reference (a blank one is none), or the checker of the user's raised.
    """
    reference = (problem.reference or "").strip()
    if problem.checker is None and not reference:
        return None
    if answer is None:
        return False
    if problem.checker is not None:
        try:
            return bool(problem.checker(answer))
        except Exception:  # the user's code may raise anything; a finished search keeps its result
            return None
    wanted = reference, meant(reference, problem.kind)
    if problem.kind == "exact":
        return answer.strip() in wanted
    return any(equivalent(answer, text) for text in wanted)
