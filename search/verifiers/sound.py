"""Fence around verifiers: whatever one does, each path gets one verdict with a sound score or the reason why not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from search.ports import Candidate, Verifier
from search.types import Verdict


async def sound_verdicts(verifier: Verifier, batch: Sequence[Candidate], seconds: float | None) -> list[Verdict]:
    """One verdict with a score in [0, 1] or None per candidate, in the seconds left (None: as long as it takes)."""
    name = type(verifier).__name__
    try:
        verdicts = list(await asyncio.wait_for(verifier.score(batch), seconds))
        error = f"returned {len(verdicts)} verdicts for {len(batch)} paths"
    except TimeoutError:
        verdicts, error = [], "raised TimeoutError" if seconds is None else f"did not answer within {seconds:.3g} s"
    except (Exception, SystemExit) as raised:  # the search goes on without these scores; the result warns of it
        verdicts, error = [], f"raised {type(raised).__name__}: {raised}"
    if len(verdicts) != len(batch):
        return [Verdict(None, name, error=f"{name} {error}")] * len(batch)
    return [_sound(verdict, name) for verdict in verdicts]


def _sound(verdict: object, name: str) -> Verdict:
    """A verdict whose score is a number in [0, 1], or one that says what came instead."""
    if not isinstance(verdict, Verdict):
        return Verdict(None, name, error=f"{name} returned a {type(verdict).__name__}, not a Verdict")
    score: object = verdict.score
    if score is None or (isinstance(score, int | float) and 0.0 <= score <= 1.0):
        return verdict
    return replace(verdict, score=None, error=f"{name} gave the score {score!r}, not a number in [0, 1]")
