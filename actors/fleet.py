"""The engines of a pool: which of them can take calls, how loaded they are, and bringing back those that cannot."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from itertools import islice
from statistics import median
from typing import Any

from actors.handles import EngineDownError, EngineFailedError, EngineHandle, IndexDownError
from actors.placement import PREFILL_RATE, STEP_S, Load
from actors.rates import EngineLoad
from search.types import Outcome, Score

_RETRY_S = 1.0
_LOAD_S = 300.0
"""Within so many seconds, at first, an engine that was down answers or fails."""
_ASK_S = 10.0
"""Within so many seconds an engine that works says how far it is."""
PROGRESS = ("steps", "calls", "score_calls", "expansions", "scores", "generated", "prefilled", "scored")
"""Counters of `Engine.stats` that grow while it works."""
_SAMPLE = 16
_LOST = (EngineDownError, EngineFailedError, IndexDownError)
"""What a call may raise whose loss costs time only."""
_STALE_S = 30.0
"""An engine that was slower than most and has had nothing to do for so long is measured anew: rates are learned by work
alone, and placement gives a slow engine none while others have room."""


class Fleet:
    """Engines may join and leave at any time.

    on_down: awaited once for each engine that goes down, before it is waited for. on_up: called when an engine can take
    calls, again or for the first time. `changed`: engines whose load or state changed since somebody cleared it.
    """

    def __init__(
        self,
        engines: Sequence[EngineHandle],
        on_failure: Callable[[str, str], None],
        on_down: Callable[[str], Coroutine[Any, Any, None]],
        on_up: Callable[[str], None] = lambda name: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engines = {engine.name: engine for engine in engines}
        self.loads = {name: EngineLoad() for name in self.engines}
        self.changed: set[str] = set(self.engines)
        self.clock = clock
        self.on_failure = on_failure
        self._on_down = on_down
        self._on_up = on_up
        self._typical: Load | None = None
        self._looked_s = clock()
        self._down: dict[str, asyncio.Task[None]] = {}
        self._draining: set[str] = set()
        self._idle: dict[str, asyncio.Event] = {}
        self._calls: dict[str, int] = dict.fromkeys(self.engines, 0)
        self._downs: Counter[str] = Counter()
        self._told: set[asyncio.Task[None]] = set()
        self._together: dict[str, list[EngineLoad]] = {}
        self._unasked = dict.fromkeys(self.engines)

    # -- who is there ----------------------------------------------------------------------------------------------
    def is_up(self, name: str) -> bool:
        """Whether orders may be sent there."""
        return name in self.engines and name not in self._down and name not in self._draining

    def up(self) -> list[str]:
        return [name for name in self.engines if self.is_up(name)]

    def reachable(self, name: str) -> bool:
        """Whether the engine answers, be it that it gets no new orders."""
        return name in self.engines and name not in self._down

    def add(self, engine: EngineHandle) -> None:
        """The engine may be used from now on. ValueError if there is one of this name."""
        if engine.name in self.engines:
            raise ValueError(f"there is an engine {engine.name!r} already; names must be unique")
        self.engines[engine.name] = engine
        self.loads[engine.name] = EngineLoad()
        self._calls[engine.name] = 0
        self._begin(engine.name)

    def retire(self, name: str) -> None:
        """No new calls; what is under way goes on. KeyError if there is no such engine."""
        if name not in self.engines:
            raise KeyError(f"there is no engine {name!r}; there are: {', '.join(self.engines)}")
        self._draining.add(name)
        self.changed.add(name)

    async def quiet(self, name: str, patience_s: float) -> bool:
        """True once no call to the engine is under way, one that still waits for KV included, or it was removed."""
        engine = self.engines[name]
        try:
            async with asyncio.timeout(patience_s):
                while self.engines.get(name) is engine and (self._calls[name] or self.loads[name].calls):
                    await self._idle.setdefault(name, asyncio.Event()).wait()
        except TimeoutError:
            return self.engines.get(name) is not engine
        return True

    def busy(self) -> bool:
        """Whether a call to any engine is under way."""
        return any(load.calls for load in self.loads.values())

    def eased(self, name: str) -> None:
        """A call to the engine is over, or it was removed: whoever waits for quiet may look."""
        if (event := self._idle.pop(name, None)) is not None:
            event.set()

    def remove(self, name: str) -> EngineHandle:
        """The engine is no part of the pool any more."""
        if (task := self._down.pop(name, None)) is not None:
            task.cancel()
        self._draining.discard(name)
        self.eased(name)
        self._put(name, "", 1)
        self._unasked.pop(name, None)
        del self.loads[name], self._calls[name]
        self.changed.add(name)
        return self.engines.pop(name)

    # -- loads -----------------------------------------------------------------------------------------------------
    def views(self) -> dict[str, Load]:
        """Loads of the engines that are up."""
        return {name: self.loads[name].view() for name in self.up()}

    def changes(self) -> dict[str, Load | None]:
        """What changed since the last call; None for an engine that gets no orders."""
        found = {name: self.loads[name].view() if self.is_up(name) else None for name in self.changed}
        self.changed.clear()
        return found

    def rivals(self, a: str, b: str) -> bool:
        """Whether both share hardware on which as many engines work as it bears at full speed: work that goes from one
        to the other is done no sooner."""
        load = self.loads[a]
        if not load.hardware or load.hardware != self.loads[b].hardware:
            return False
        together = self._together[load.hardware]
        return load.slots < len(together) and sum(1 for other in together if other.calls) >= load.slots

    def pick(self, preferred: str, avoid: Collection[str]) -> str:
        """`preferred` if it is up and not to be avoided, else the least loaded of the engines nearest to that."""
        if self.is_up(preferred) and preferred not in avoid:
            return preferred
        up = self.up()
        fresh = [name for name in up if name not in avoid] or up or list(self.engines)
        return min(fresh, key=lambda name: (self.loads[name].rows, name), default=preferred)

    async def some_up(self, patience_s: float) -> bool:
        """True once an engine is up, waiting for restarts if need be."""
        if any(self.is_up(name) for name in self.engines):
            return True
        try:
            async with asyncio.timeout(patience_s):
                while not self.up():
                    if self._down:
                        await asyncio.wait(self._down.values(), timeout=_RETRY_S, return_when=asyncio.FIRST_COMPLETED)
                    else:
                        await asyncio.sleep(_RETRY_S)
        except TimeoutError:
            return False
        return True

    def learn(
        self, name: str, outcomes: Sequence[Outcome], call_s: float, rows: float, batch_rows: int, concurrent: bool
    ) -> None:
        """What a call taught about its engine, and about those of which nothing is known yet."""
        load = self.loads[name]
        before = bool(load.prefills), bool(load.measured)
        load.learn(outcomes, call_s, rows, batch_rows, concurrent)
        self.changed.add(name)
        if before != (bool(load.prefills), bool(load.measured)):
            self._assume(self._median())
        self._measure_anew()
        for other in list(self._unasked):
            if self.is_up(other):
                del self._unasked[other]
                self.tell(self._ask_hardware(other))

    def learn_scores(self, load: EngineLoad, scores: Sequence[Score]) -> None:
        """What a call of scores taught about its engine, and about those of which nothing is known yet."""
        before = load.score_s
        load.learn_scores(scores)
        if load.score_s and not before:
            self._assume(self._median())

    # -- calls -----------------------------------------------------------------------------------------------------
    async def timed(self, name: str, call: Coroutine[Any, Any, Any], limit_s: float) -> Any:
        """Await a call; an engine that hangs is killed and counts as down.

        After each `limit_s` it must say how far it is, and that must be further than one `limit_s` before: slow is not
        hung. Calls to an engine that cannot be killed have no limit.
        """
        self._calls[name] += 1
        try:
            return await (self._watched(name, call, limit_s) if self.engines[name].killable else call)
        finally:
            if name in self._calls:
                self._calls[name] -= 1
                self.eased(name)

    def life(self, name: str) -> int:
        """How often the engine went down so far: what a call says of an earlier life says nothing of this one."""
        return self._downs[name]

    def mark_down(self, name: str, reason: str, restart: bool = False) -> None:
        """Place nothing on this engine until it answers again; restart: it hangs and has to be killed first."""
        if name in self._down or name not in self.engines:
            return
        self.on_failure(name, reason)
        self._downs[name] += 1
        self._down[name] = asyncio.get_running_loop().create_task(self._revive(name, restart))
        self.changed.add(name)

    def tell(self, call: Coroutine[Any, Any, None]) -> None:
        """As `quietly`, for a call that is not waited for."""
        task = asyncio.get_running_loop().create_task(call)
        self._told.add(task)
        task.add_done_callback(self._heard)

    async def quietly(self, call: Coroutine[Any, Any, None]) -> None:
        """Await a call whose loss costs time only."""
        try:
            await call
        except _LOST as error:
            self.on_failure("pool", str(error))

    def close(self) -> None:
        for task in (*self._down.values(), *self._told):
            task.cancel()

    # -- parts -----------------------------------------------------------------------------------------------------
    async def _ask_hardware(self, name: str) -> None:
        """Where the engine runs; one that does not say is asked again when the next call is back."""
        asked = self.loads[name]
        told = await self.stats(name)
        if self.loads.get(name) is not asked:
            return
        if told is None:
            self._unasked[name] = None
        else:
            slots = told.get("slots")
            self._put(name, str(told.get("hardware", "")), max(slots, 1) if isinstance(slots, int) else 1)

    def _put(self, name: str, hardware: str | None, slots: int) -> None:
        """The engine computes there from now on; None: it is not known where."""
        load = self.loads[name]
        if load.hardware:
            before = self._together[load.hardware]
            before[:] = [other for other in before if other is not load]
            if not before:
                del self._together[load.hardware]
        load.hardware, load.slots = hardware, slots
        if hardware is None:
            self._unasked[name] = None
        elif hardware:
            self._together.setdefault(hardware, []).append(load)
        self.changed.add(name)

    def _heard(self, task: asyncio.Task[None]) -> None:
        self._told.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, _LOST):
            self.on_failure("pool", str(error))
        elif error is not None:
            told = {"message": "a call that nobody waits for failed", "exception": error, "task": task}
            task.get_loop().call_exception_handler(told)

    async def _watched(self, name: str, call: Coroutine[Any, Any, Any], limit_s: float) -> Any:
        """The call's result; EngineDownError once its engine hangs, or was found to be down by another call."""
        life, progress = self._downs[name], None
        task = asyncio.ensure_future(call)
        try:
            while not (await asyncio.wait({task}, timeout=limit_s))[0]:
                before, progress = progress, await self._progress(name)
                if task.done():
                    break
                if self._downs[name] != life or name not in self.engines:
                    raise EngineDownError("it was restarted")
                if progress is None or progress == before:
                    reason = f"no {'answer' if progress is None else 'progress'} in {limit_s:g} s"
                    self.mark_down(name, reason, restart=True)
                    raise EngineDownError(reason)
            return task.result()
        finally:
            task.cancel()

    async def _progress(self, name: str) -> tuple[Any, ...] | None:
        """What the engine has done so far; None if it does not say."""
        counts = await self.stats(name)
        return None if counts is None else tuple(counts.get(key, 0) for key in PROGRESS)

    async def stats(self, name: str) -> dict[str, Any] | None:
        """Counters of the engine; None if it does not say."""
        if name not in self.engines:
            return None
        try:
            async with asyncio.timeout(_ASK_S):
                return await self.engines[name].stats()
        except (EngineDownError, EngineFailedError, TimeoutError):
            return None

    async def _revive(self, name: str, restart: bool) -> None:
        """Wait until the engine answers. One that neither answers nor fails is killed, each time after twice as long:
        how long a model takes to load is not known here."""
        patience_s = _LOAD_S
        try:
            if restart:
                await self.quietly(self.engines[name].restart())
            await self._on_down(name)
            while True:
                try:
                    async with asyncio.timeout(patience_s):
                        while not await self._answers(name):
                            await asyncio.sleep(_RETRY_S)
                        break
                except TimeoutError:
                    patience_s *= 2
                    if self.engines[name].killable:
                        await self.quietly(self.engines[name].restart())
        finally:
            self._down.pop(name, None)
        self._begin(name)

    def _begin(self, name: str) -> None:
        """An engine among measured ones starts slowly; where nothing was measured yet there is nothing to go by."""
        if (typical := self._median(name)) is not None:
            self.loads[name].begin_slowly(typical)
        self._put(name, None, 1)
        self._on_up(name)

    def _assume(self, typical: Load | None) -> None:
        """Engines that were not measured yet are taken for typical ones; told again only if that has changed much."""
        if typical is None or _alike(typical, self._typical):
            return
        self._typical = typical
        for name, load in self.loads.items():
            if not (load.measured and load.prefills):
                load.assume(typical)
                self.changed.add(name)

    def _measure_anew(self) -> None:
        now = self.clock()
        if now < self._looked_s + _STALE_S / 8:
            return
        self._looked_s = now
        for name, load in self.loads.items():
            if load.measured and load.idle_s(now) >= _STALE_S and self.is_up(name):
                typical = self._median(name)
                if typical is not None and load.slower_than(typical):
                    load.begin_slowly(typical)
                    self.changed.add(name)

    def _median(self, without: str = "") -> Load | None:
        """Rates of a few measured engines, which stand for all; None if there are none."""
        others = (load for other, load in self.loads.items() if other != without)
        some = list(islice((load for load in others if load.prefills or load.measured), _SAMPLE))
        prefills = [load.prefill_rate for load in some if load.prefills]
        steps = [load.step_s for load in some if load.measured]
        if not prefills and not steps:
            return None
        views = [load.view() for load in some if load.measured]
        return Load(
            prefill_rate=median(prefills or [PREFILL_RATE]),
            step_s=median(steps or [STEP_S]),
            row_s=median([view.row_s for view in views] or [0.0]),
            score_s=median([view.score_s for view in views] or [0.0]),
        )

    async def _answers(self, name: str) -> bool:
        try:
            await self.engines[name].ready()
        except (EngineDownError, EngineFailedError):
            return False
        return True


def _alike(a: Load, b: Load | None) -> bool:
    """Whether rates differ by less than a quarter."""
    if b is None:
        return False
    rates = (a.prefill_rate, b.prefill_rate), (a.step_s, b.step_s), (a.row_s, b.row_s), (a.score_s, b.score_s)
    return all(0.8 * y <= x <= 1.25 * y for x, y in rates)
