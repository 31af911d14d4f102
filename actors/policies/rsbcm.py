"""`rsbcm`: the lowest cost J of `actors.placement`, over home, holders and a few engines drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from actors.placement import Branch, Placed, Wave, place
from actors.policies.base import ChoosingPolicy


class Rsbcm(ChoosingPolicy):
    """Branches stay where their prefix is unless waiting there costs more than leaving."""

    name: ClassVar[str] = "rsbcm"
    uses_home: ClassVar[bool] = True

    def place(self, tree: str, wave: Wave, branches: Sequence[Branch]) -> list[Placed]:
        return place(wave, branches, self.name)
