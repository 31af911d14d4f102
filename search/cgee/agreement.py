"""The agreement rule: nothing is left to verify once the finished branches agree on one answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from search.cgee.base import Contender, Rule, Scope, Skip, Wave
from search.strategies.options import require_number
from search.voting import Vote, beta_confidence, tally

_GRID = (0.998, 0.995, 0.99, 0.98, 0.97, 0.96, 0.95, 0.925, 0.90, 0.85, 0.80, 0.75, 0.70, 0.65, 0.60, 0.55)


@dataclass(frozen=True, kw_only=True)
class Agreement(Rule):
    """Skip if P(the leading answer keeps its lead) >= agree_at, by the Beta posterior of the two highest counts.

    Source: adaptive consistency (Aggarwal et al. 2023), see `search.voting.beta_confidence`. Counted are all finished
    branches of the search with an answer, earlier waves included, each as often as it was sampled.
    Standing: the share of votes of the branch's answer; 0 without one.
    """

    name: ClassVar[str] = "agreement"
    agree_at: float = 0.95

    def __post_init__(self) -> None:
        require_number(self, 0.5, 1.0, "agree_at")
        if self.agree_at == 0.5:
            raise ValueError(f"option agree_at must be in (0.5, 1], got {self.agree_at!r}")

    @property
    def scope(self) -> Scope:
        return "tree"

    def decide(self, wave: Wave) -> Skip | None:
        voters = (*wave.finished, *wave.contenders)
        groups = tally([_vote(contender) for contender in voters], voters[0].kind if voters else "auto")
        if not groups:
            return None
        counts = [round(group.weight) for group in groups]
        first, second = (*counts, 0)[:2]
        certainty = beta_confidence(first, second)
        if certainty < self.agree_at:
            return None
        share = {node_id: group.weight / sum(counts) for group in groups for node_id in group.members}
        standings = tuple(share.get(contender.node_id, 0.0) for contender in wave.contenders)
        reason = f"{first} of {sum(counts)} finished branches say {groups[0].answer} (certainty {certainty:.3f})"
        return Skip(self.name, reason, standings)

    @classmethod
    def grid(cls) -> list[Mapping[str, float]]:
        """Candidate thresholds, strict to loose; 8 of 8 votes have certainty 0.998, 4 of 4 have 0.969."""
        return [{"agree_at": value} for value in _GRID]


def _vote(contender: Contender) -> Vote:
    return Vote(contender.answer, contender.node_id, contender.count)
