"""No skipping: every branch is verified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from search.cgee.base import Rule, Scope, Skip, Wave


@dataclass(frozen=True, kw_only=True)
class Off(Rule):
    """Serves every strategy, skips nothing."""

    name: ClassVar[str] = "off"

    @property
    def scope(self) -> Scope:
        return "tree"

    def decide(self, wave: Wave) -> Skip | None:
        return None
