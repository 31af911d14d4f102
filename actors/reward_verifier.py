"""Verifier by reward models on actors of their own: hang-proof, and never a score for a path it has none for."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from zlib import crc32

from actors.convert import cost_of
from actors.handles import EngineDownError, EngineFailedError
from actors.reward import InlineReward, RewardHandle, RewardSpec
from engine.solution import RewardQuery, Rewards
from search.aggregation import RULES
from search.ports import Candidate
from search.types import Cost, Verdict
from search.verifiers.step_scores import verdict_of

_LOAD_S = 900.0
_ATTEMPTS = 2


@dataclass
class RewardVerifier:
    """spec: the model; its reading "steps" makes this a PRM, "whole" an ORM. aggregate: how step scores become the
    path's. timeout_s: a model that is silent for longer is ended and started anew; one whose process died is asked
    once more. Problems are dealt to the models that are connected by their ids, so that each finds its KV.
    """

    spec: RewardSpec
    aggregate: str = "last"
    timeout_s: float = 120.0
    handles: list[RewardHandle] = field(default_factory=list)
    _turns: list[asyncio.Lock] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.aggregate not in RULES:
            raise ValueError(f"verifier aggregate must be one of {', '.join(RULES)}, got {self.aggregate!r}")
        if self.timeout_s <= 0:
            raise ValueError(f"verifier timeout_s must be positive, got {self.timeout_s}")
        if self.spec.reading == "steps" and not self.spec.separator:
            raise ValueError("step_separator must be at least one character, the one the model was trained with")
        self.spec.check()

    @property
    def name(self) -> str:
        return "prm" if self.spec.reading == "steps" else "orm"

    @property
    def needs(self) -> frozenset[str]:
        """Nothing of the engines."""
        return frozenset()

    def connect(self, handles: Sequence[RewardHandle]) -> None:
        """Ask these models from now on; none: one in this process, at first use."""
        self.handles = list(handles)
        self._turns = [asyncio.Lock() for _ in handles]

    async def score(self, batch: Sequence[Candidate]) -> list[Verdict]:
        if len(self._turns) != len(self.handles) or not self.handles:
            self.connect(self.handles or [InlineReward(self.name, self.spec)])
        parts: dict[int, list[int]] = defaultdict(list)
        for i, candidate in enumerate(batch):
            parts[crc32(candidate.problem.id.encode()) % len(self.handles)].append(i)
        answers = await asyncio.gather(*(self._ask(n, [batch[i] for i in part]) for n, part in parts.items()))
        found = dict(zip([i for part in parts.values() for i in part], [v for vs in answers for v in vs], strict=True))
        return [found[i] for i in range(len(batch))]

    async def _ask(self, number: int, batch: Sequence[Candidate]) -> list[Verdict]:
        """Calls wait for each other here, so that the time they wait is not taken for a model that hangs."""
        queries = [RewardQuery(c.problem.text, c.steps) for c in batch]
        async with self._turns[number]:
            rewards = await self._answer(self.handles[number], queries)
        if isinstance(rewards, str):
            return [Verdict(None, self.name, error=f"{self.name}: {rewards}")] * len(batch)
        if len(rewards) != len(batch):
            error = f"{self.name} answered {len(rewards)} of {len(batch)} paths"
            return [Verdict(None, self.name, error=error)] * len(batch)
        return [self._verdict(c, found) for c, found in zip(batch, rewards, strict=True)]

    async def _answer(self, handle: RewardHandle, queries: list[RewardQuery]) -> list[Rewards] | str:
        """What the model says, or why it does not."""
        error = ""
        for _ in range(_ATTEMPTS):
            limit = _LOAD_S
            try:
                async with asyncio.timeout(limit):
                    await handle.ready()
                limit = self.timeout_s
                async with asyncio.timeout(limit):
                    return list(await handle.score(queries))
            except TimeoutError:
                await handle.restart()
                return f"{handle.name} did not answer within {limit:g} s and was started anew"
            except EngineDownError as down:
                error = f"{handle.name} died: {down}"
            except EngineFailedError as failed:
                return str(failed)
        return error

    def _verdict(self, candidate: Candidate, found: Rewards) -> Verdict:
        usage = cost_of(found.usage)
        cost = Cost(verified=usage.prefilled + usage.verified, seconds=usage.seconds)
        if found.error is not None:
            return Verdict(None, self.name, cost, f"{self.name}: {found.error}")
        expected = len(candidate.steps) if self.spec.reading == "steps" else 1
        return verdict_of(found.values, expected, self.name, self.aggregate, cost)
