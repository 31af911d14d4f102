"""`round_robin`: one engine after the other, over all trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from actors.placement import Branch, Wave
from actors.policies.base import ChoosingPolicy


class RoundRobin(ChoosingPolicy):
    """Gives every engine as many branches, whatever they cost."""

    name: ClassVar[str] = "round_robin"

    def __init__(self) -> None:
        self._next = 0

    def choose(self, tree: str, wave: Wave, branch: Branch, among: Sequence[str]) -> str:
        self._next += 1
        return among[(self._next - 1) % len(among)]
