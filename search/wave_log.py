"""What a search leaves behind after each wave, so that another process can go on where it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from search.cgee.base import SkipReport
from search.types import Cost, Expansion, Outcome


@dataclass(frozen=True, slots=True)
class WaveRecord:
    """One wave as it was told, with what it cost besides its outcomes.

    outcomes: in told order, verdicts included. verification: cost of judging them. verifications: paths judged.
    seconds: since the search began, earlier processes included. warnings: new ones. skips: of the search so far.
    merged: siblings that went into others (ASKS `merged`), of the search so far.
    """

    outcomes: tuple[Outcome, ...]
    verification: Cost = field(default_factory=Cost)
    verifications: int = 0
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    skips: SkipReport = field(default_factory=SkipReport)
    merged: int = 0


class WaveLog(Protocol):
    """Waves of one problem on a lasting medium."""

    def waves(self) -> Sequence[WaveRecord]:
        """What earlier processes left, oldest first."""
        ...

    async def append(self, wave: WaveRecord) -> None:
        """The wave is safe when this returns. Whatever it raises ends the search."""
        ...

    def landed(self) -> Mapping[str, Outcome]:
        """Outcomes, by expansion, of a wave that earlier processes did not bring to its end; of no worth behind it."""
        ...

    def keep(self, outcome: Outcome) -> None:
        """An outcome of the wave under way, as an engine gave it. Must not raise."""
        ...


class ReplayError(ValueError):
    """A strategy does not ask for what the log says it asked for."""


def require_same(asked: Sequence[Expansion], wave: WaveRecord, number: int) -> None:
    """ReplayError if the orders of a wave are not those that were recorded. number: of the wave, from 1."""
    now, then = [order.id for order in asked], [outcome.expansion_id for outcome in wave.outcomes]
    if now != then:
        raise ReplayError(
            f"wave {number} of the journal has the expansions {_few(then)}, the strategy now asks for {_few(now)}: "
            f"its code, or that of the search, is not what wrote the journal"
        )


def _few(ids: Sequence[str]) -> str:
    return ", ".join(ids[:4]) + (", ..." if len(ids) > 4 else "") if ids else "nothing"
