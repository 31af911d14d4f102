"""Fence around verifiers: whatever one does, each path gets one verdict with a sound score or the reason why not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from search.ports import Candidate, Context, KeepVerdict, Piecewise, Verifier
from search.types import Problem, Verdict
from search.verifiers.step_scores import unit


async def sound_verdicts(
    verifier: Verifier, batch: Sequence[Candidate], seconds: float | None, keep: KeepVerdict | None = None
) -> list[Verdict]:
    """One verdict with a score in [0, 1] or None per candidate, in the seconds left (None: as long as it takes).

    A verifier with `score_each` loses only those that come late. keep: called with each verdict as it comes.
    """
    name = type(verifier).__name__
    came: dict[int, Verdict] = {}

    def take(i: int, verdict: object) -> None:
        came[i] = _sound(verdict, name)
        if keep is not None:
            keep(i, came[i])

    why = await _ask(verifier, batch, seconds, take)
    for i in range(len(batch)):
        if i not in came:
            take(i, Verdict(None, name, error=f"{name} {why}"))
    return [came[i] for i in range(len(batch))]


async def piecewise(verifier: Piecewise, batch: Sequence[Candidate]) -> list[Verdict]:
    """`score` of a verifier with `score_each`."""
    came: dict[int, Verdict] = {}
    await verifier.score_each(batch, came.__setitem__)
    return [came[i] for i in range(len(batch))]


async def _ask(
    verifier: Verifier, batch: Sequence[Candidate], seconds: float | None, take: Callable[[int, object], None]
) -> str:
    """Why paths of which no verdict was taken have none."""
    late = f"did not answer within {seconds:.3g} s" if seconds is not None else ""
    if seconds is not None and seconds <= 0:
        return late
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            if isinstance(verifier, Piecewise):
                await verifier.score_each(batch, take)
                return "gave no verdict"
            verdicts = list(await verifier.score(batch))
    except TimeoutError:
        return late if limit.expired() else "raised TimeoutError"
    except BaseException as raised:  # the search goes on without these scores; the result warns of it
        if from_outside(raised):
            raise
        return f"raised {type(raised).__name__}: {raised}"
    if len(verdicts) != len(batch):
        return f"returned {len(verdicts)} verdicts for {len(batch)} paths"
    for i, verdict in enumerate(verdicts):
        take(i, verdict)
    return ""


def kept(verifier: Verifier | None, problem: Problem) -> Sequence[Context]:
    """Paths of the verifier's own that were of use while this problem was searched."""
    known = getattr(verifier, "kept", None)
    return known(problem) if callable(known) else ()


def tokens_to_score(verifier: Verifier, batch: Sequence[Candidate]) -> int:
    """Tokens the verifier would feed for the batch, 0 if it cannot tell."""
    price = getattr(verifier, "tokens_to_score", None)
    return int(price(batch)) if callable(price) else 0


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


def _sound(verdict: object, name: str) -> Verdict:
    """A verdict whose score is a number in [0, 1], or one that says what came instead."""
    if not isinstance(verdict, Verdict):
        return Verdict(None, name, error=f"{name} returned a {type(verdict).__name__}, not a Verdict")
    score: object = verdict.score
    if score is None:
        return verdict
    if (number := unit(score)) is not None:
        return replace(verdict, score=number)
    return replace(verdict, score=None, error=f"{name} gave the score {score!r}, not a number in [0, 1]")
