"""Scores of branches from the engines that grew them, and from others where those fail."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from actors.fleet import Fleet
from actors.handles import EngineDownError, EngineFailedError
from search.types import Score, ScoreRequest


@dataclass(slots=True, eq=False)
class _Item:
    """A request with its history."""

    work: ScoreRequest
    attempts: int = 0
    alone: bool = False
    avoid: set[str] = field(default_factory=set)
    error: str = ""

    def again(self, name: str, error: str) -> None:
        """What failed goes alone next time, so that a bad question fails by itself, and elsewhere if it can."""
        self.attempts += 1
        self.alone = True
        self.avoid.add(name)
        self.error = error


Group = tuple[str, list[_Item]]


class Scoring:
    """Takes no credits: a question is short, it belongs to the engine that holds its branch, and a search waits for it.

    See `actors.dispatcher.PoolOptions` for attempts, call_timeout_s and patience_s. on_call: called when a call to an
    engine begins and when it ends. on_request: called with each request of a call, before it is sent and, `over`, when
    the call has ended, however it did: one that nobody waits for any more goes on there. spawn: begins a task.
    """

    def __init__(
        self,
        fleet: Fleet,
        attempts: int,
        call_timeout_s: float,
        patience_s: float,
        on_call: Callable[[str, bool], None],
        on_request: Callable[[str, ScoreRequest, bool], None],
        spawn: Callable[[Coroutine[Any, Any, str]], asyncio.Task[str]],
    ) -> None:
        self._fleet = fleet
        self._attempts = attempts
        self._call_timeout_s = call_timeout_s
        self._patience_s = patience_s
        self._on_call = on_call
        self._on_request = on_request
        self._spawn = spawn

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        """One score per request, in order; a request fails only after `attempts` tries."""
        scores: dict[int, Score] = {}
        pending = [_Item(request) for request in requests]
        items = list(pending)
        while pending:
            if not await self._fleet.some_up(self._patience_s):
                break
            groups = self._grouped(pending)
            calls = [self._spawn(self._call(name, group, scores)) for name, group in groups]
            errors = await asyncio.gather(*map(asyncio.shield, calls))
            pending = []
            for (name, group), error in zip(groups, errors, strict=True):
                for item in group if error else ():
                    item.again(name, error)
                    if item.attempts < self._attempts:
                        pending.append(item)
        missing = "no engine answers"
        return [scores.get(id(i)) or Score(i.work.id, None, error=i.error or missing) for i in items]

    def _grouped(self, pending: Sequence[_Item]) -> list[Group]:
        """By engine; an item that goes alone is a group of its own."""
        groups: dict[tuple[str, str], list[_Item]] = defaultdict(list)
        for item in pending:
            name = self._fleet.pick(item.work.engine, item.avoid)
            groups[name, item.work.id if item.alone else ""].append(item)
        return [(name, group) for (name, _), group in groups.items()]

    async def _call(self, name: str, group: Sequence[_Item], scores: dict[int, Score]) -> str:
        """An empty string once the group has its scores, else why it has not."""
        if (load := self._fleet.loads.get(name)) is None:
            return "the engine left"
        self._on_call(name, True)
        for item in group:
            self._on_request(name, item.work, False)
        load.scoring += len(group)
        self._fleet.changed.add(name)
        try:
            call = self._fleet.engines[name].score([item.work for item in group])
            found: list[Score] = await self._fleet.timed(name, call, self._call_timeout_s)
        except EngineDownError as error:
            self._fleet.mark_down(name, str(error))
            return str(error)
        except EngineFailedError as error:
            self._fleet.on_failure(name, str(error))
            return str(error)
        finally:
            load.scoring -= len(group)
            self._fleet.changed.add(name)
            self._on_call(name, False)
            for item in group:
                self._on_request(name, item.work, True)
        self._fleet.learn_scores(load, found)
        scores.update((id(item), score) for item, score in zip(group, found, strict=True))
        return ""
