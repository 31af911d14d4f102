"""`least_loaded`: the engine with the least outstanding work; prefixes count for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from actors.placement import Branch, Wave
from actors.policies.base import ChoosingPolicy, least_loaded


class LeastLoaded(ChoosingPolicy):
    """Looks at all engines for each branch: for comparison, not for thousands of engines."""

    name: ClassVar[str] = "least_loaded"

    def choose(self, tree: str, wave: Wave, branch: Branch, among: Sequence[str]) -> str:
        return least_loaded(wave, branch, among)
