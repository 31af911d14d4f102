"""A verifier that is a command: one path as JSON on its standard input, a score as JSON on its standard output."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from search.aggregation import RULES
from search.answers import extract
from search.ports import Candidate, KeepVerdict
from search.types import Verdict
from search.verifiers.process import Process, TooMuchOutputError
from search.verifiers.sound import piecewise
from search.verifiers.step_scores import unit, verdict_of
from search.verifiers.threads import in_thread

_SHOWN = 200


@dataclass(frozen=True)
class CommandVerifier:
    """command: a list, or a text that is split as a shell would, without running one.

    In: {"problem", "reference", "steps", "text", "answer", "complete"}. Out: a number in [0, 1], {"score": number}, a
    list of one number per step, or {"scores": list}; step scores are put together by `aggregate`. A process is killed
    with all it started `timeout_s` after its start. A timeout, a signal, an exit code other than 0, output that is no
    such JSON, a wrong count or a value outside of [0, 1] is a verdict with an error. workers: processes at a time, of
    all searches in one event loop.
    """

    command: str | Sequence[str]
    timeout_s: float = 10.0
    workers: int = 2
    aggregate: str = "last"
    _free: MutableMapping[asyncio.AbstractEventLoop, asyncio.Semaphore] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        words = shlex.split(self.command) if isinstance(self.command, str) else [str(word) for word in self.command]
        if not words or shutil.which(words[0]) is None:
            raise ValueError(f"verifier command {self.command!r} must start with a program that can be run")
        if self.timeout_s <= 0 or self.workers < 1:
            given = f"got {self.timeout_s} and {self.workers}"
            raise ValueError(f"verifier command needs timeout_s > 0 and workers >= 1, {given}")
        if self.aggregate not in RULES:
            raise ValueError(f"verifier aggregate must be one of {', '.join(RULES)}, got {self.aggregate!r}")
        object.__setattr__(self, "command", tuple(words))

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    async def score(self, batch: Sequence[Candidate]) -> list[Verdict]:
        return await piecewise(self, batch)

    async def score_each(self, batch: Sequence[Candidate], keep: KeepVerdict) -> None:
        free = self._free.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.workers))

        async def one(i: int, candidate: Candidate) -> None:
            async with free:
                keep(i, await self._one(candidate))

        await asyncio.gather(*(one(i, candidate) for i, candidate in enumerate(batch)))

    async def _one(self, candidate: Candidate) -> Verdict:
        name = os.path.basename(self.command[0])
        try:
            code, out, err = await self._run(_question(candidate))
        except TimeoutError:
            return Verdict(None, name, error=f"{name} was killed after {self.timeout_s:g} s")
        except (OSError, TooMuchOutputError) as error:
            return Verdict(None, name, error=f"{name}: {error}")
        if code:
            how = f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
            said = err.decode(errors="replace").strip()[-_SHOWN:]
            return Verdict(None, name, error=f"{name} {how}" + (f": {said}" if said else ""))
        return self._read(out, len(candidate.steps), name)

    def _read(self, out: bytes, steps: int, name: str) -> Verdict:
        try:
            found = json.loads(out)
        except ValueError:
            return Verdict(None, name, error=f"{name} wrote no JSON: {out[:_SHOWN].decode(errors='replace')!r}")
        if isinstance(found, dict):
            found = found.get("scores", found.get("score"))
        if isinstance(found, list):
            return verdict_of(found, steps, name, self.aggregate)
        if (score := unit(found)) is None:
            return Verdict(None, name, error=f"{name} gave the score {found!r}, not a number in [0, 1]")
        return Verdict(score, name)

    async def _run(self, question: bytes) -> tuple[int, bytes, bytes]:
        """In a thread; a search that gives up meanwhile leaves no process behind."""
        process = Process(self.command)
        try:
            return await in_thread(lambda: process.ask(question, self.timeout_s))
        except asyncio.CancelledError:
            process.kill()
            raise


def _question(candidate: Candidate) -> bytes:
    problem = candidate.problem
    asked = {
        "problem": problem.text,
        "reference": problem.reference,
        "steps": candidate.steps,
        "text": candidate.text,
        "answer": extract(candidate.text, problem.kind) if candidate.text.strip() else None,
        "complete": candidate.complete,
    }
    return json.dumps(asked).encode()
