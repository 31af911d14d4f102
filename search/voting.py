"""Votes over answers, and the certainty of a lead."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from search.answers import canonical, equivalent


@dataclass(frozen=True)
class Vote:
    """One branch's answer, None where it gave none, and how much it counts."""

    answer: str | None
    node_id: str
    weight: float = 1.0


@dataclass(frozen=True)
class Group:
    """The votes for one answer: its first stated form, their number, total weight and node ids in order."""

    answer: str
    count: int
    weight: float
    members: tuple[str, ...]


_WORDS = frozenset({"text", "exact"})
"""Kinds whose answers are their words: `4 * 6` and `25 - 1` are two."""


@dataclass
class _Ballot:
    """A group in the making; `forms` maps each canonical key in it to the first answer with that key."""

    forms: dict[str, str]
    votes: list[Vote] = field(default_factory=list)

    def admits(self, answer: str) -> bool:
        """Whether the answer is equivalent to every form: a bare `5` must not join `5 km` to `5 m`."""
        return all(equivalent(form, answer) for form in self.forms.values())

    def close(self) -> Group:
        weight = math.fsum(vote.weight for vote in self.votes)
        answer = next(iter(self.forms.values()))
        return Group(answer, len(self.votes), weight, tuple(vote.node_id for vote in self.votes))


def tally(votes: Sequence[Vote], kind: str = "auto") -> list[Group]:
    """Groups of equivalent answers by falling weight, then count, then first appearance in `votes`.

    Votes without an answer do not count; no votes with one give no groups. An answer joins the first group to
    all of whose forms it is equivalent; of the kind `text` the group that says the same, of `exact` the one that has
    its text. ValueError for a weight that is not finite.
    """
    ballots: list[_Ballot] = []
    by_key: dict[str, _Ballot] = {}
    for vote in votes:
        if not math.isfinite(vote.weight):
            raise ValueError(f"vote weight must be a finite number; node {vote.node_id!r} has {vote.weight}")
        if vote.answer is None or not vote.answer.strip():
            continue
        key = canonical(vote.answer, kind)
        ballot = by_key.get(key)
        if ballot is None:
            open_to = () if kind in _WORDS else ballots
            ballot = next((other for other in open_to if other.admits(vote.answer)), None)
            if ballot is None:
                ballots.append(ballot := _Ballot({}))
            by_key[key] = ballot
            ballot.forms[key] = vote.answer
        ballot.votes.append(vote)
    groups = [ballot.close() for ballot in ballots]
    return sorted(groups, key=lambda group: (-group.weight, -group.count))


def beta_confidence(first: int, second: int) -> float:
    """P(p > 1/2) under Beta(first + 1, second + 1): how sure it is that the leading answer keeps its lead.

    The stopping rule of adaptive consistency (Aggarwal et al. 2023), from the two highest counts. Exact: with
    n = first + second + 1 it is the chance of at most `first` heads in n fair tosses. ValueError below zero.
    """
    if first < 0 or second < 0:
        raise ValueError(f"counts must not be negative; got {first} and {second}")
    tosses, term, total = first + second + 1, 1, 0
    for heads in range(first + 1):
        total += term
        term = term * (tosses - heads) // (heads + 1)
    return total / (1 << tosses)
