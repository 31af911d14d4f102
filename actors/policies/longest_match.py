"""`longest_match`: the engine that holds most of the path; it piles a tree's work on one engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from actors.placement import Branch, Wave
from actors.policies.base import ChoosingPolicy, least_loaded


class LongestMatch(ChoosingPolicy):
    """Loads decide between equal matches only."""

    name: ClassVar[str] = "longest_match"

    def choose(self, tree: str, wave: Wave, branch: Branch, among: Sequence[str]) -> str:
        allowed = among if branch.avoid else None
        for key, _, held in wave.held(branch):
            planned = [actor for actor, plan in wave.planned() if key in plan.keys]
            found = [a for a in sorted({*held, *planned}) if wave.knows(a) and (allowed is None or a in allowed)]
            if found:
                return least_loaded(wave, branch, found)
        return least_loaded(wave, branch, among)
