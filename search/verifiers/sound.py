"""Fence around verifiers: whatever one does, each path gets one verdict with a sound score or the reason why not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace

from search.ports import Candidate, Verifier
from search.types import Verdict


async def sound_verdicts(verifier: Verifier, batch: Sequence[Candidate], seconds: float | None) -> list[Verdict]:
    """One verdict with a score in [0, 1] or None per candidate, in the seconds left (None: as long as it takes)."""
    name = type(verifier).__name__
    late = f"did not answer within {seconds:.3g} s" if seconds is not None else ""
    if seconds is not None and seconds <= 0:
        return _none(name, late, len(batch))
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            verdicts = list(await verifier.score(batch))
    except TimeoutError:
        return _none(name, late if limit.expired() else "raised TimeoutError", len(batch))
    except BaseException as raised:  # the search goes on without these scores; the result warns of it
        if from_outside(raised):
            raise
        return _none(name, f"raised {type(raised).__name__}: {raised}", len(batch))
    if len(verdicts) != len(batch):
        return _none(name, f"returned {len(verdicts)} verdicts for {len(batch)} paths", len(batch))
    return [_sound(verdict, name) for verdict in verdicts]


def from_outside(error: BaseException) -> bool:
    """Whether an error that came out of a user's code is not that code's own and has to go on: the current task is
    being cancelled or closed, or Ctrl-C, which Python raises in the main thread only.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    if isinstance(error, KeyboardInterrupt):
        return threading.current_thread() is threading.main_thread()
    return isinstance(error, GeneratorExit)


def _none(name: str, error: str, count: int) -> list[Verdict]:
    return [Verdict(None, name, error=f"{name} {error}")] * count


def _sound(verdict: object, name: str) -> Verdict:
    """A verdict whose score is a number in [0, 1], or one that says what came instead."""
    if not isinstance(verdict, Verdict):
        return Verdict(None, name, error=f"{name} returned a {type(verdict).__name__}, not a Verdict")
    score: object = verdict.score
    if score is None or (isinstance(score, int | float) and 0.0 <= score <= 1.0):
        return verdict
    return replace(verdict, score=None, error=f"{name} gave the score {score!r}, not a number in [0, 1]")
