"""Orchestrator: what a user holds. Checks everything first, starts engines when the first problem comes, solves."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from actors.dispatcher import Dispatcher
from actors.metering import DriverMeter
from actors.spec import EngineSpec
from engine.asks.options import refused
from engine.base import Codec, begin
from orchestrator.background_loop import BackgroundLoop
from orchestrator.cgee import Gates, setting_of, with_known_dtype
from orchestrator.config import Config, UsageError
from orchestrator.estimates import estimate_for
from orchestrator.pool import start_pool
from orchestrator.prepare import Checked, NoPool, Prepared, as_strategy, drain, outcome_of
from orchestrator.verifiers import chosen_verifier, require_judge, verifier_for, verifier_name
from search.budget import Budget
from search.calibration.record import Setting
from search.cgee.base import SkipRule
from search.driver import EventSink, TreeSearch, validate
from search.estimate import Estimate
from search.ports import Pool, Verifier
from search.prompts import ChatPrompt
from search.result import SearchResult
from search.strategies.base import Strategy
from search.types import Event, Problem

if TYPE_CHECKING:
    from orchestrator.batch.job import JobOptions
    from orchestrator.batch.stop import Stop
    from orchestrator.batch.summary import BatchSummary

SolveResult = SearchResult
BudgetLike = Budget | Mapping[str, float] | None


class Orchestrator:
    """Solves problems by tree search on engines that live in Ray actors or in this process.

    Keyword arguments are the keys of `orchestrator.config.Config`; `engine` gives a factory of an own engine instead of
    a model, `verifier` also takes a callable `(problem text, path text) -> score in [0, 1]` or a
    `search.ports.Verifier`.
    Use as a context manager, or call `close`. Errors the user can mend are `UsageError`s (a ValueError).
    """

    def __init__(
        self, *, engine: Callable[[], Any] | None = None, verifier: Any = "self_evaluation", **options: Any
    ) -> None:
        named = verifier if isinstance(verifier, str) else "none"
        config = Config.create(verifier=named, **options)
        self.config = with_known_dtype(config) if config.cgee_record is not None and engine is None else config
        self._verifier, self._reward = chosen_verifier(self.config, verifier)
        if engine is not None and not callable(engine):
            raise UsageError(f"engine takes a function that builds an engine, got {engine!r}; use model= for a name")
        self.spec = self.config.spec if engine is None else EngineSpec(model="factory", factory=engine)
        self._prompt = ChatPrompt(self.config.system, self.config.instruction, self.config.layout)
        self._gates = Gates(self.config, lambda: self.setting)
        self._priors: dict[str, float] = {}
        self._pool: Dispatcher | None = None
        self._close_pool: Callable[[], None] | None = None
        self._starting = threading.RLock()
        self._batch = threading.Lock()
        self._loop = BackgroundLoop("orchestrator", self._starting)
        self.failures: list[tuple[str, str]] = []
        self.meter = DriverMeter()
        try:
            self.spec.check()
        except ValueError as error:
            raise UsageError(str(error)) from None

    # -- solving ---------------------------------------------------------------------------------------------------
    def solve(
        self,
        problem: str | Problem,
        strategy: str | Strategy = "tot",
        *,
        budget: BudgetLike = None,
        seed: int = 0,
        cgee: str | SkipRule | None = None,
        on_event: EventSink | None = None,
        **options: Any,
    ) -> SolveResult:
        """Solve one problem. options: the strategy's own (see docs and `search.strategies`).

        cgee: which rule may leave out verifications in this call, by name or a `search.cgee.base.SkipRule`; None is as
        configured.
        """
        search = self.prepare([problem], strategy, budget=budget, seed=seed, cgee=cgee, on_event=on_event, **options)
        return self._loop.run(search.one(search.problems[0]))

    def solve_many(
        self,
        problems: Sequence[str | Problem],
        strategy: str | Strategy = "tot",
        *,
        budget: BudgetLike = None,
        seed: int = 0,
        cgee: str | SkipRule | None = None,
        on_event: EventSink | None = None,
        **options: Any,
    ) -> list[SolveResult]:
        """Solve several problems, `concurrency` at a time; results in order. The budget holds for each problem.

        A problem whose search breaks has a result with `error` set; the others are not touched.
        """
        return list(
            self.solve_each(problems, strategy, budget=budget, seed=seed, cgee=cgee, on_event=on_event, **options)
        )

    def solve_each(
        self,
        problems: Sequence[str | Problem],
        strategy: str | Strategy = "tot",
        *,
        budget: BudgetLike = None,
        seed: int = 0,
        cgee: str | SkipRule | None = None,
        on_event: EventSink | None = None,
        **options: Any,
    ) -> Iterator[SolveResult]:
        """As `solve_many`, but each result as soon as it and all before it are there."""
        search = self.prepare(problems, strategy, budget=budget, seed=seed, cgee=cgee, on_event=on_event, **options)
        futures = [self._loop.submit(search.one(problem)) for problem in search.problems]

        def results() -> Iterator[SolveResult]:
            try:
                for future in futures:
                    yield self._loop.wait(future)
            finally:
                for future in futures:
                    future.cancel()

        return results()

    def stream(
        self,
        problem: str | Problem,
        strategy: str | Strategy = "tot",
        *,
        budget: BudgetLike = None,
        seed: int = 0,
        cgee: str | SkipRule | None = None,
        **options: Any,
    ) -> Iterator[Event | SolveResult]:
        """Events as they happen, the result last; what is wrong with the input is raised at once.

        Leaving the iteration early ends the search.
        """
        events: queue.SimpleQueue[Event | SolveResult | BaseException] = queue.SimpleQueue()
        search = self.prepare([problem], strategy, budget=budget, seed=seed, cgee=cgee, on_event=events.put, **options)
        future = self._loop.submit(search.one(search.problems[0]))
        future.add_done_callback(lambda f: events.put(outcome_of(f)))
        return drain(events, future)

    def run_batch(
        self,
        source: str | Path,
        out: str | Path,
        strategy: str | Strategy = "tot",
        *,
        budget: BudgetLike = None,
        seed: int = 0,
        cgee: str | None = None,
        job: JobOptions | None = None,
        halt: Stop | None = None,
        on_event: EventSink | None = None,
        **options: Any,
    ) -> BatchSummary:
        """Solve every row of a file (or of files, by a pattern) into `out`, a folder or a URL; see docs/batch.md.

        The same call again goes on where it was ended, even killed. The budget holds for each problem. halt: pauses the
        job behind the waves under way, from any thread. UsageError before anything runs; OSError when the disk is full.
        """
        from orchestrator.batch.job import Job, JobOptions
        from orchestrator.batch.output import written
        from orchestrator.batch.stop import Stop

        checked = self._check([], strategy, budget, seed, cgee, options)
        how, halt = job or JobOptions(), halt or Stop()
        if not self._batch.acquire(blocking=False):  # calls and placements of all searches are noted by the job
            raise UsageError("this orchestrator is running a batch job; wait for it, or use another orchestrator")
        try:
            with written(str(out), how.files(checked.strategy), how.upload_s, how.spool, halt) as folder:
                work = Job(self, str(source), folder, checked, cgee, how, halt, on_event)
                return self._loop.run(work.run(work.begin()))
        finally:
            self._batch.release()

    def prepare(
        self,
        problems: Sequence[str | Problem],
        strategy: str | Strategy,
        *,
        budget: BudgetLike = None,
        seed: int = 0,
        cgee: str | SkipRule | None = None,
        on_event: EventSink | None = None,
        asks: Sequence[str] | None = None,
        merged: bool | None = None,
        **options: Any,
    ) -> Prepared:
        """Check everything that can be checked without an engine, then return the searches, not yet started.

        asks: ASKS tiers that may approximate, of those that are on, None for all; merged: as in `Config`. `solve` and
        its siblings hand both on.
        """
        checked = self._check(problems, strategy, budget, seed, cgee, options, asks, merged)
        return Prepared(checked.problems, self.search(checked, on_event), self.config.concurrency)

    def _check(
        self,
        problems: Sequence[str | Problem],
        strategy: str | Strategy,
        budget: BudgetLike,
        seed: int,
        cgee: str | SkipRule | None,
        options: Mapping[str, Any],
        asks: Sequence[str] | None = None,
        merged: bool | None = None,
    ) -> Checked:
        self._loop.refuse_own_thread("solve")
        if isinstance(problems, str):
            raise UsageError("several problems are a list of texts, not one text; use solve for one")
        try:
            if (error := refused(asks, self.spec.asks.tiers)) is not None:
                raise UsageError(error)
            if isinstance(seed, bool) or not isinstance(seed, int) or not -(1 << 63) <= seed < 1 << 64:
                raise UsageError(f"seed must be a whole number of at most 64 bits, got {seed!r}")
            chosen = as_strategy(strategy, options)
            limits = budget if isinstance(budget, Budget) else Budget.from_mapping({} if budget is None else budget)
            checked = [p if isinstance(p, Problem) else Problem(p, kind=self.config.kind) for p in problems]
            gate = self._gates.gate(cgee)
            judge = self._verifier_for(chosen, NoPool())
            require_judge(self.config, judge, gate)
            validate(self.spec.capabilities, chosen, judge, gate)
            self.check_lengths(checked, chosen)
        except ValueError as error:
            raise UsageError(str(error)) from None
        return Checked(checked, chosen, limits, seed, gate, self.config.merged if merged is None else merged, asks)

    @property
    def setting(self) -> Setting:
        """What a calibration record made here is for."""
        name = verifier_name(self.config, self._verifier)
        return setting_of(self.config, self.spec, self._codec, self._prompt, name)

    def estimate(
        self,
        problem: str | Problem,
        strategy: str | Strategy = "tot",
        *,
        budget: BudgetLike = None,
        cgee: str | SkipRule | None = None,
        asks: Sequence[str] | None = None,
        merged: bool | None = None,
        **options: Any,
    ) -> Estimate:
        """Upper bound of calls, tokens, nodes and KV of one `solve` with these arguments; starts no engine.

        It holds whatever `cgee` skips and whatever siblings are `merged`: both only take away from it.
        """
        try:
            if (error := refused(asks, self.spec.asks.tiers)) is not None:
                raise UsageError(error)
            self._gates.gate(cgee)
            chosen = as_strategy(strategy, options)
            asked = problem if isinstance(problem, Problem) else Problem(problem, kind=self.config.kind)
            limits = budget if isinstance(budget, Budget) else Budget.from_mapping({} if budget is None else budget)
            judge = self._verifier_for(chosen, NoPool())
            return estimate_for(self.config, self.spec, self._codec, self._prompt, asked, chosen, judge, limits)
        except ValueError as error:
            raise UsageError(str(error)) from None

    # -- lifecycle -------------------------------------------------------------------------------------------------
    @property
    def pool(self) -> Dispatcher:
        """The engines, started at first use."""
        with self._starting:
            if self._pool is None:
                self._pool, self._close_pool = start_pool(
                    self.config,
                    self.spec,
                    self._codec,
                    self._note_failure,
                    self._reward,
                    self.meter,
                    self._loop.submit,
                )
            return self._pool

    def start(self, timeout_s: float = 900.0) -> dict[str, int]:
        """Start the engines and wait until they can take calls; engine name -> process id. TimeoutError if one does not
        answer in time: searches go on without it, and end it when a call to it hangs."""
        pool = self.pool

        async def ready() -> dict[str, int]:
            asked = {name: asyncio.ensure_future(engine.ready()) for name, engine in pool.engines.items()}
            try:
                await asyncio.wait(asked.values(), timeout=timeout_s)
                if late := [name for name, task in asked.items() if not task.done()]:
                    raise TimeoutError(f"no answer within {timeout_s:g} s from {', '.join(late)}")
                return {name: task.result() for name, task in asked.items()}
            finally:
                for task in asked.values():
                    task.cancel()
                await asyncio.gather(*asked.values(), return_exceptions=True)

        return self._loop.run(ready())

    def stats(self) -> dict[str, Mapping[str, Any]]:
        """Counters of every engine."""
        return self._loop.run(self.pool.stats())

    def close(self) -> None:
        """Stop the engines this object started. May be called twice."""
        self._loop.refuse_own_thread("close")
        with self._starting:
            self._loop.cancel_all(lambda: None if self._pool is None else self._pool.close())
            if self._close_pool is not None:
                self._close_pool()
            self._pool = self._close_pool = None
            if self._reward is not None:
                self._reward.connect([])
            self._loop.close()

    def __enter__(self) -> Orchestrator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- parts -----------------------------------------------------------------------------------------------------
    @cached_property
    def _codec(self) -> Codec:
        return self.spec.codec()

    def search(self, checked: Checked, on_event: EventSink | None) -> TreeSearch:
        """The search of a checked call, on the engines, which are started if need be."""
        return TreeSearch(
            self.pool,
            checked.strategy,
            self._verifier_for(checked.strategy, self.pool),
            prompt=self._prompt,
            sampling=self.config.sampling,
            budget=checked.budget,
            seed=checked.seed,
            capacity=self.config.capacity,
            gate=checked.gate,
            on_event=self.meter.watching(on_event),
            merge=checked.merged,
            tiers=checked.tiers,
        )

    def _verifier_for(self, strategy: Strategy, pool: Pool) -> Verifier | None:
        return verifier_for(self.config, self._verifier, strategy, pool, self._prompt, self._priors)

    def check_lengths(self, problems: Sequence[Problem], strategy: Strategy) -> None:
        """The prompt and one step must fit into the model's context; UsageError otherwise."""
        for problem in problems:
            for hint in strategy.hints or ("",):
                tokens = len(begin(self._codec, self._prompt.messages(problem, hint)))
                step = int(getattr(strategy, "max_tokens", self.config.max_step_tokens))
                if tokens + step > self._codec.context_length:
                    raise UsageError(
                        f"problem {problem.id!r} is too long: its prompt has {tokens} tokens, with {step} new tokens "
                        f"that exceeds the context of {self._codec.context_length} tokens of model {self.spec.model!r}"
                    )

    def _note_failure(self, engine: str, reason: str) -> None:
        self.failures.append((engine, reason))
        del self.failures[:-100]
