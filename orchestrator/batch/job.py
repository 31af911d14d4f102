"""A batch job: many problems in flight, each behind its journal, results written as they come; resumable anywhere.

Infrastructure failures (every expansion of a problem failed) are tried again, from the problem's start, at most
`retries` times; bad rows and broken user code are not. A full disk ends the job; what is on it counts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.placement import Placed
from orchestrator.batch.activity import Activity
from orchestrator.batch.attempt import Attempt, PausedError
from orchestrator.batch.events import EventLog
from orchestrator.batch.inputs import BatchInput, Columns, Row, Shard
from orchestrator.batch.journal import StorageError
from orchestrator.batch.results import ResultsFile
from orchestrator.batch.settings import begin, check_name, fingerprint, settings_of
from orchestrator.batch.stop import Stop
from orchestrator.batch.summary import BatchSummary
from orchestrator.batch.tally import Tally
from orchestrator.config import UsageError
from orchestrator.placements import plain
from orchestrator.prepare import Checked
from search.driver import EventSink, TreeSearch
from search.strategies.base import Strategy
from search.types import Event
from search.wave_log import WaveRecord

if TYPE_CHECKING:
    from orchestrator.orchestrator import Orchestrator

_PROGRESS_S = 1.0


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """limit: first rows only. retries: more tries of a problem whose every expansion failed. retry_errors: rows that
    failed before are done again. name: of the run in its folder, the strategy's by default.

    max_tokens: generated in the whole job, earlier processes included; max_seconds: of this process. A job that
    reaches one pauses behind the waves under way.

    upload_s, spool: of an output at a URL, seconds between uploads, and the folder on this machine's disk that holds
    the files meanwhile, in the user's cache by default.
    """

    columns: Columns = field(default_factory=Columns)
    limit: int | None = None
    shard: Shard = field(default_factory=Shard)
    retries: int = 2
    retry_errors: bool = False
    name: str | None = None
    max_tokens: int | None = None
    max_seconds: float | None = None
    upload_s: float = 5.0
    spool: Path | None = None

    def __post_init__(self) -> None:
        for name, least in (("limit", 1), ("retries", 0), ("max_tokens", 1)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise UsageError(f"job option {name} must be a whole number of at least {least}, got {value!r}")
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise UsageError(f"job option max_seconds must be positive, got {self.max_seconds!r}")
        if not self.upload_s > 0:
            raise UsageError(f"job option upload_s must be positive, got {self.upload_s!r}")

    @property
    def results_name(self) -> str:
        shard = self.shard
        return "results.jsonl" if shard.count == 1 else f"results.{shard.index}-of-{shard.count}.jsonl"

    def run_name(self, strategy: Strategy) -> str:
        """Of the run in its folder. UsageError if it is none."""
        name = check_name(self.name or strategy.name)
        return name if self.shard.count == 1 else f"{name}.{self.shard.index}-of-{self.shard.count}"

    def files(self, strategy: Strategy) -> tuple[str, str]:
        """What a run writes: its results file, and its folder."""
        return self.results_name, f"runs/{self.run_name(strategy)}/"


class Job:
    """Checked and ready: `begin`, then `run` in the orchestrator's loop. UsageError for anything wrong, before engines
    start."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        source: str,
        out: Path,
        checked: Checked,
        cgee: str | None,
        options: JobOptions,
        stop: Stop,
        on_event: EventSink | None,
    ) -> None:
        self.orchestrator = orchestrator
        self.options = options
        gate = None if checked.gate is None else checked.gate.fresh()
        self.checked = replace(checked, gate=gate)
        self.input = BatchInput.open(source, options.columns, orchestrator.config.kind)
        self.name = options.run_name(checked.strategy)
        self.folder = out / "runs" / self.name
        settings = settings_of(orchestrator, checked.strategy, checked.budget, checked.seed, cgee, options.columns)
        self.fingerprint = fingerprint(settings)
        self.results = ResultsFile(out / options.results_name, self.name)
        try:
            begin(self.folder, settings, source)
            self.results.load(options.retry_errors)
            self._events = EventLog(self.folder / "events.jsonl")
        except StorageError as error:
            self.results.close()
            raise UsageError(str(error)) from None
        except BaseException:
            self.results.close()
            raise
        if gate is not None:
            gate.restore(self.results.skips)  # audits of a run add up over its processes
        self.tally = Tally()
        self.activity = Activity()
        self.stop = stop
        self._user_sink = on_event
        self._ids: set[bytes] = set()
        self._before = self.results.tokens
        self._broke: StorageError | None = None

    def begin(self) -> TreeSearch:
        """Start the engines if need be; the results file is let go if they do not start."""
        try:
            return self.orchestrator.search(self.checked, self._on_event)
        except BaseException:
            self.results.close()
            self._events.close()
            raise

    async def run(self, search: TreeSearch) -> BatchSummary:
        """Every row that is not finished, until the input ends or the job is stopped."""
        clock = asyncio.get_running_loop().time
        self.tally, self.activity = Tally(clock), Activity(clock)  # the clock starts with the engines there
        self._say("begin", run=self.name, input=[str(path) for path in self.input.paths], strategy=search.strategy.name)
        pool = self.orchestrator.pool
        pool.on_call, pool.on_placed = self.activity.on_call, self._placed
        attempt = Attempt(self.orchestrator, search, self.folder / "journal", self.fingerprint, self._wave)
        rows = self.input.rows(self.options.limit, self.options.shard)
        beside = [asyncio.create_task(work) for work in (self._count(), self._progress())]
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(self.orchestrator.config.concurrency):
                    workers.create_task(self._worker(rows, attempt))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            summary = self._close()
        if self._broke is not None:
            raise self._broke
        return summary

    # -- rows ------------------------------------------------------------------------------------------------------
    async def _worker(self, rows: Iterator[Row], attempt: Attempt) -> None:
        try:
            while (row := await self._next(rows)) is not None:
                await self._solve(row, attempt)
        except StorageError as error:
            self._break(error)

    def _break(self, error: StorageError) -> None:
        """Pause because of the disk; the first error is the one that is told."""
        self._broke = self._broke or error
        self.stop.set("storage")

    async def _next(self, rows: Iterator[Row]) -> Row | None:
        """The next row that has no result; a job without one has not paused, whatever it has used."""
        while (row := _read(rows)) is not None:
            checked = self._different(row)
            if checked.key not in self.results:
                return None if self.stopped() else checked
            self.tally.counts["skipped"] += 1
            if self.tally.counts["skipped"] % 1000 == 0:
                await asyncio.sleep(0)
                if self.stop.reason is not None:
                    break
        return None

    def _different(self, row: Row) -> Row:
        """The row, or one that fails because another row has its id."""
        if row.problem is None:  # its id is the number of its line
            return row
        digest = row.id.encode("utf-8", "replace")
        if digest in self._ids:
            return replace(row, problem=None, error=f"id {row.id!r} was given before; ids must differ")
        self._ids.add(digest)
        return row

    async def _solve(self, row: Row, attempt: Attempt) -> None:
        """One row to its result row; nothing is written for one that is put off."""
        self.tally.begin(row.id)
        try:
            result = await attempt.row(row, self.options.retries)
        except PausedError:
            return
        finally:
            self.tally.leave(row.id)
        self.results.append(row.key, result)
        self.tally.finish(result)
        self._say("row", row.id, **{key: result.get(key) for key in ("answer", "correct", "stop_reason", "error")})

    def _wave(self, wave: WaveRecord) -> None:
        """Behind every wave on disk."""
        self.tally.wave(wave)
        if self.stopped():
            raise PausedError

    def stopped(self) -> bool:
        """Whether the job must pause: asked from outside, or a limit of the job is reached."""
        options = self.options
        if options.max_tokens is not None and self._before + self.tally.counts["tokens"] >= options.max_tokens:
            self.stop.set("tokens")
        if options.max_seconds is not None and self.tally.seconds >= options.max_seconds:
            self.stop.set("seconds")
        return self.stop.reason is not None

    # -- telling ---------------------------------------------------------------------------------------------------
    def _on_event(self, event: Event) -> None:
        if event.kind == "resume":
            self._before += int(event.data["tokens"])
        self._events.write(event.kind, event.problem_id, {"t_s": round(event.t_s, 4), **event.data})
        if self._user_sink is not None:
            self._user_sink(event)

    def _say(self, kind: str, problem_id: str = "", **data: Any) -> None:
        """An event of the job itself; the user's sink gets it without a problem."""
        self._events.write(kind, problem_id or None, data)
        if self._user_sink is not None:
            self._user_sink(Event(kind, problem_id, round(self.tally.seconds, 4), data))

    async def _count(self) -> None:
        """How many rows there are is nice to know; an input that cannot be read to its end is told by who reads it."""
        with contextlib.suppress(OSError):
            self.tally.total = await asyncio.to_thread(self.input.count, self.options.limit, self.options.shard)

    async def _progress(self) -> None:
        try:
            while True:
                self._tell_progress()
                await asyncio.sleep(_PROGRESS_S)
        except StorageError as error:
            self._break(error)

    def _tell_progress(self, last: bool = False) -> None:
        for busy in self.activity.stretches(last):
            self._say("busy", engine=busy.engine, begins_s=round(busy.begins_s, 3), ends_s=round(busy.ends_s, 3))
        progress = self.tally.snapshot()
        self.orchestrator.meter.job(self.name, progress)
        self._say("progress", **progress, idle=dict(self._idle()))

    def _idle(self) -> Mapping[str, float]:
        return self.activity.idle_share(self.orchestrator.pool.engines)

    def _placed(self, problem_id: str, decisions: Sequence[Placed]) -> None:
        self._say("placement", problem_id, decisions=[plain(decision) for decision in decisions])

    def _close(self) -> BatchSummary:
        idle = self._idle()
        if self.stop.reason is None:
            self.tally.total = sum(self.tally.counts[name] for name in ("done", "failed", "skipped"))
        summary = BatchSummary.of(self.results, self.tally, idle, self.stop.reason)
        pool = self.orchestrator.pool
        pool.on_call, pool.on_placed = (lambda engine, begins: None), (lambda tree, decisions: None)
        self.results.close()
        try:
            self._tell_progress(last=True)
            self._say("end", **summary.to_json())
            self._events.close()
        except StorageError as error:
            self._break(error)
        return summary


def _read(rows: Iterator[Row]) -> Row | None:
    try:
        return next(rows, None)
    except OSError as error:
        raise StorageError(error.errno, f"the input cannot be read to its end: {error.strerror}") from None
