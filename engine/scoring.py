"""P(yes) of questions behind paths: a path's KV is shared with the tree, the question's is dropped at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from engine.admission import Claim
from engine.asks.options import refused
from engine.base import Codec, LayerExit, ScoreQuery, ScoreResult, Usage, flat, refusal, without_repeated_end
from engine.fused import FusedModel
from engine.labels import Labels, Scale
from engine.layer_exit import Reading, read
from engine.packed import Feed
from engine.scheduler import Scheduler

SCORE_TOKENS = 512


@dataclass(slots=True, eq=False)
class Asked:
    """A score query in tokens, or why it is refused. claim: what it uses while it is read; held: path tokens
    before, `approximate` of them in KV that ASKS approximated. scale: of a query for an expected value."""

    query: ScoreQuery
    path: tuple[int, ...]
    question: list[int]
    error: str | None
    claim: Claim | None = None
    held: int = 0
    approximate: int = 0
    scale: Scale | None = None

    @property
    def reused(self) -> dict[str, int]:
        """Held path tokens by tier."""
        exact = {"exact": self.held - self.approximate}
        return {**exact, "shifted": self.approximate} if self.approximate else exact

    @classmethod
    def of(cls, query: ScoreQuery, codec: Codec) -> Asked:
        path = flat(query.path)
        tokens = without_repeated_end(codec, path, codec.encode(query.question))
        asked = cls(query, path, tokens, refusal(codec, path, len(tokens)))
        try:
            asked.scale = Scale.of(codec, query.values) if query.values else None
        except ValueError as error:
            asked.error = asked.error or str(error)
        return asked

    @property
    def rule(self) -> LayerExit | None:
        """When the reading may end early: never for an expected value."""
        return None if self.query.values else self.query.layer_exit

    def value(self, logits: Tensor, labels: Labels) -> float:
        """P(yes), or the expected value. logits [V]"""
        return labels.p_yes(logits) if self.scale is None else self.scale.expected(logits)


@dataclass(frozen=True, slots=True)
class Scorer:
    """Reads questions in packed batches, between the steps of a scheduler and from the same budget."""

    scheduler: Scheduler
    labels: Labels
    clock: Callable[[], float]

    def score(self, waiting: deque[Asked]) -> list[ScoreResult]:
        """Take the first queries from `waiting`, as many as fit now, and score them; none if the first has to wait."""
        began = self.clock()
        batch: list[Asked] = []
        try:
            feeds = self._feeds(waiting, batch)
            read = [asked for asked in batch if asked.claim is not None]
            readings = iter(self._read(feeds, read) if feeds else ())
        finally:
            for asked in batch:
                if asked.claim is not None:
                    self.scheduler.admission.leave(asked.claim)
        seconds = (self.clock() - began) / max(len(feeds), 1)
        self.scheduler.tree.enforce_budget()
        return [self._scored(asked, readings, seconds) for asked in batch]

    def _read(self, feeds: Sequence[Feed], batch: Sequence[Asked]) -> list[Reading]:
        """One reading a feed; a model without an own layer loop is read to its last layer whatever the rule."""
        forward, rule = self.scheduler.forward, batch[0].rule
        if rule is not None and isinstance(model := forward.model, FusedModel):
            return read(forward, model, feeds, rule, self.labels)
        layers = self.scheduler.shape.layers
        return [Reading(a.value(row, self.labels), layers) for a, row in zip(batch, forward(feeds), strict=True)]

    def _feeds(self, waiting: deque[Asked], batch: list[Asked]) -> list[Feed]:
        """Move queries to `batch` while they fit: `SCORE_TOKENS` question tokens (one longer goes alone), and bytes.

        All of one pass have the same rule of layer exit.
        """
        feeds: list[Feed] = []
        size = 0
        while waiting:
            asked = waiting[0]
            if feeds and size + len(asked.question) > SCORE_TOKENS:
                break
            if batch and asked.rule != batch[0].rule:
                break
            if asked.error is None and not self._admitted(asked) and asked.error is None:
                break
            batch.append(waiting.popleft())
            if asked.claim is not None:
                feeds.append(self._feed(asked, asked.claim))
                size += len(asked.question)
        return feeds

    def _admitted(self, asked: Asked) -> bool:
        """False if the query has to wait, or can never be served (which is its error then)."""
        admission, path, tokens = self.scheduler.admission, asked.path[:-1], len(asked.question) + 1
        asked.error = admission.refusal(len(path), tokens)
        if asked.error is None:
            asks = self.scheduler.asks
            tiers = asks.chosen(asked.query.tiers) if asks else frozenset()
            asked.error = refused(asked.query.tiers, asks.on if asks else frozenset())
            if asked.error is None:
                asked.claim = admission.admit(path, tokens, 1, approximate="shifted" in tiers)
        return asked.claim is not None

    def _feed(self, asked: Asked, claim: Claim) -> Feed:
        asked.held = claim.pin.end
        asked.approximate = sum(len(node.tokens) for node in claim.pin.path() if node.approximate)
        self.scheduler.compute(claim)
        row = self.scheduler.admission.run(claim, whole=True)
        return row, [asked.path[-1], *asked.question], True

    def _scored(self, asked: Asked, readings: Iterator[Reading], seconds: float) -> ScoreResult:
        if asked.error is not None:
            return ScoreResult(asked.query.id, None, error=asked.error)
        reading, layers = next(readings), self.scheduler.shape.layers
        usage = Usage(
            prefilled=len(asked.path) - 1 - asked.held,
            scored=len(asked.question) + 1,
            reused=asked.reused,
            held=asked.held,
            exits=int(reading.layers < layers),
            layer_rows=reading.layers,
            layer_rows_full=layers,
            seconds={"score": seconds},
        )
        return ScoreResult(asked.query.id, reading.p_yes, usage)


def asked_of(queries: Sequence[ScoreQuery], codec: Codec) -> deque[Asked]:
    return deque(Asked.of(query, codec) for query in queries)
