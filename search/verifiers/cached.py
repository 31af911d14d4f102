"""Verdicts remembered by the exact content they were given for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from search.ports import Candidate, Verifier
from search.types import Cost, Verdict
from search.verifiers.sound import sound_verdicts

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

    async def score(self, batch: Sequence[Candidate]) -> list[Verdict]:
        keys = [self._key(candidate) for candidate in batch]
        known = {key: self._kept[key] for key in keys if key in self._kept}  # others may evict them meanwhile
        asked = {key: candidate for key, candidate in zip(keys, batch, strict=True) if key not in known}
        fresh: dict[Key, Verdict] = {}
        if asked:
            fresh = dict(zip(asked, await sound_verdicts(self.inner, list(asked.values()), None), strict=True))
        charged = set(fresh)
        verdicts = []
        for key in keys:
            verdict = fresh[key] if key in fresh else known[key]
            verdicts.append(verdict if key in charged else replace(verdict, cost=Cost()))
            charged.discard(key)
        self._keep(keys, fresh)
        return verdicts

    def _keep(self, keys: Sequence[Key], fresh: dict[Key, Verdict]) -> None:
        self._kept.update((key, verdict) for key, verdict in fresh.items() if verdict.error is None)
        for key in keys:
            if key in self._kept:
                self._kept.move_to_end(key)
        while len(self._kept) > self.size:
            self._kept.popitem(last=False)

    def _key(self, candidate: Candidate) -> Key:
        problem = candidate.problem
        content: Key = (problem.id, problem.text, problem.reference, candidate.steps, candidate.complete)
        return (*content, candidate.context, candidate.confidence) if self.inner.needs else content
