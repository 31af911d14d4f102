"""Asks the index where branches should go, reporting what changed; places by the driver's own view while it is down."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from actors.fleet import Fleet
from actors.handles import IndexDownError, IndexHandle
from actors.link import Link, price_of_leaving
from actors.local_view import LocalView
from actors.placement import Branch, Placed
from actors.placer import Assignment, Placer

_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
"""An index that did not answer is asked again after so long, each time after twice as long: one that hangs costs each
question the whole limit of a call."""


class Assigner:
    """One for each driver. driver: its name at the index. link: measured speed of moving KV, None where it stays."""

    def __init__(
        self,
        index: IndexHandle,
        fleet: Fleet,
        local: LocalView,
        rows_per_engine: int,
        policy: str,
        seed: int,
        on_failure: Callable[[str, str], None],
    ) -> None:
        self.index = index
        self.driver = uuid.uuid4().hex
        self.link: Link | None = None
        self._fleet = fleet
        self._base = Assignment("", (), {}, rows_per_engine, driver=self.driver, policy=policy, seed=seed)
        self._own = Placer(local.holders, clock=fleet.clock)
        self._on_failure = on_failure
        self._whole = True
        self._pause_s = 0.0
        """0 while the index answers; then waves are placed without it until a report has got through."""
        self._asked_s = 0.0

    async def assign(
        self, tree: str, branches: tuple[Branch, ...], signature: bytes = b"", again: bool = False
    ) -> list[Placed]:
        """A decision for each branch, in order; there must be an engine that is up."""
        wave = replace(
            self._base,
            tree=tree,
            branches=branches,
            signature=signature,
            again=again,
            mu=price_of_leaving(self.link),
            link=self.link,
            loads={},
        )
        if self._pause_s:
            return self._alone(wave)
        try:
            return await self._ask(wave) or await self._ask(wave, whole=True) or self._alone(wave)
        except IndexDownError as error:
            self._on_failure("index", str(error))
            return self._alone(wave)

    def end_tree(self, tree: str) -> None:
        self._own.end_tree(tree)

    async def report(self) -> None:
        """Tell the index what changed, for other drivers that share it, and that this one lives."""
        if self._pause_s:
            if self._fleet.clock() < self._asked_s + self._pause_s:
                return
            self._pause(min(2 * self._pause_s, _LONGEST_PAUSE_S))
        with suppress(IndexDownError):
            await self._ask(self._base)

    async def _ask(self, wave: Assignment, whole: bool = False) -> list[Placed]:
        """Load reports must arrive in order: what changed is taken and sent without a pause in between."""
        whole = whole or self._whole
        loads = {**self._fleet.views()} if whole else self._fleet.changes()
        if whole:
            self._fleet.changed.clear()
        self._whole = False
        try:
            placed = await self.index.assign(replace(wave, loads=loads, whole=whole))
        except IndexDownError:
            self._whole = True
            if not self._pause_s:
                self._pause(_PAUSE_S)
            raise
        self._pause_s = 0.0
        return placed

    def _pause(self, seconds: float) -> None:
        self._pause_s, self._asked_s = seconds, self._fleet.clock()

    def _alone(self, wave: Assignment) -> list[Placed]:
        return self._own.assign(replace(wave, loads={**self._fleet.views()}, whole=True))
