"""`random`: any engine, drawn by the wave's seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from actors.placement import Branch, Wave
from actors.policies.base import ChoosingPolicy


class Draw(ChoosingPolicy):
    """Knows neither prefixes nor loads."""

    name: ClassVar[str] = "random"

    def choose(self, tree: str, wave: Wave, branch: Branch, among: Sequence[str]) -> str:
        return among[int(wave.rng.random() * len(among))]
