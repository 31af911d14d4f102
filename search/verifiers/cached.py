"""Verdicts remembered by the exact content they were given for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from search.ports import Candidate, Context, KeepVerdict, Verifier
from search.types import Cost, Problem, Verdict
from search.verifiers.sound import kept, piecewise, sound_verdicts, tokens_to_score

Key = tuple[Hashable, ...]


@dataclass(frozen=True)
class Cached:
    """size: verdicts kept, the least recently used go first. Scores only: an error may be another next time.

    The content is the problem with its reference, the steps and whether the path is finished; for verifiers that ask
    the engine also the path's tokens. A remembered verdict costs nothing. Equal paths of a batch are judged once.
    """

    inner: Verifier
    size: int = 10_000
    _kept: OrderedDict[Key, Verdict] = field(default_factory=OrderedDict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"cache size must be at least 1, got {self.size}")

    @property
    def needs(self) -> frozenset[str]:
        return self.inner.needs

    def tokens_to_score(self, batch: Sequence[Candidate]) -> int:
        """Of what is not remembered."""
        asked = {key: candidate for candidate in batch if (key := self._key(candidate)) not in self._kept}
        return tokens_to_score(self.inner, list(asked.values()))

    def kept(self, problem: Problem) -> Sequence[Context]:
        return kept(self.inner, problem)

    async def score(self, batch: Sequence[Candidate]) -> list[Verdict]:
        return await piecewise(self, batch)

    async def score_each(self, batch: Sequence[Candidate], keep: KeepVerdict) -> None:
        keys = [self._key(candidate) for candidate in batch]
        places: dict[Key, list[int]] = {}
        for i, key in enumerate(keys):
            if key in self._kept:
                keep(i, replace(self._kept[key], cost=Cost()))
            else:
                places.setdefault(key, []).append(i)
        asked = list(places.items())

        def came(n: int, verdict: Verdict) -> None:
            key, (first, *others) = asked[n]
            keep(first, verdict)
            for i in others:
                keep(i, replace(verdict, cost=Cost()))
            if verdict.error is None:
                self._kept[key] = verdict

        try:
            if asked:
                await sound_verdicts(self.inner, [batch[first] for _, (first, *_) in asked], None, came)
        finally:
            self._trim(keys)

    def _trim(self, used: Sequence[Key]) -> None:
        for key in used:
            if key in self._kept:
                self._kept.move_to_end(key)
        while len(self._kept) > self.size:
            self._kept.popitem(last=False)

    def _key(self, candidate: Candidate) -> Key:
        problem = candidate.problem
        content: Key = (problem.id, problem.text, problem.reference, candidate.steps, candidate.complete)
        return (*content, candidate.context, candidate.confidence) if self.inner.needs else content
