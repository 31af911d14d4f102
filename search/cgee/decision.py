"""One decision: which branch of a wave is selected, and whether two selections are the same."""

from __future__ import annotations

from collections.abc import Sequence

from search.cgee.base import Contender
from search.voting import Vote, tally


def select(contenders: Sequence[Contender], values: Sequence[float | None]) -> int | None:
    """Index of the branch that is selected by these values (scores, or standings): the highest, the first of equals.

    Finished branches that state an answer come before all others, then those that can go on, as at the end of a
    search (`search.strategies.selection.best_by_score`). None for no branches. ValueError for another number of values.
    """
    if len(values) != len(contenders):
        raise ValueError(f"{len(contenders)} branches need as many values, got {len(values)}")
    if not contenders:
        return None

    def key(i: int) -> tuple[bool, bool, bool, float]:
        value = values[i]
        contender = contenders[i]
        return contender.answer is not None, not contender.complete, value is not None, value or 0.0

    return max(range(len(contenders)), key=key)


def answer_groups(contenders: Sequence[Contender]) -> list[int | None]:
    """For each branch the number of its group of equivalent answers; None without an answer."""
    votes = [Vote(contender.answer, str(i)) for i, contender in enumerate(contenders)]
    groups = tally(votes, contenders[0].kind if contenders else "auto")
    number = {int(member): n for n, group in enumerate(groups) for member in group.members}
    return [number.get(i) for i in range(len(contenders))]


def flipped(groups: Sequence[int | None], full: int | None, chosen: int | None) -> bool:
    """Whether `chosen` is another branch than full verification's: branches with equivalent answers are one branch."""
    if full == chosen:
        return False
    if full is None or chosen is None:
        return True
    return groups[full] is None or groups[full] != groups[chosen]
