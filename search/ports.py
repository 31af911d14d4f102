"""What a search needs from outside: a pool of engines, and a verifier. Implementations live above this package."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from search.types import Expansion, Outcome, Problem, Score, ScoreRequest, Verdict

Message = Mapping[str, str]
"""One chat message: `{"role": ..., "content": ...}`."""


Context = tuple[tuple[int, ...], ...]
"""Token segments of a path, the prompt first."""


Keep = Callable[[Outcome], None]
"""Takes an outcome as it comes from an engine, before the wave is whole."""


class Flight(Protocol):
    """Orders under way. Iterating gives each outcome once, as it comes, and ends when all are back."""

    def __aiter__(self) -> AsyncIterator[Outcome]: ...

    def cancel(self, ids: Collection[str]) -> None:
        """These need not go on: they come back soon, with what they have. Orders that are back are left alone."""
        ...


class Pool(Protocol):
    """Engines, wherever they live. One failed branch is an Outcome with an error, never an exception."""

    @property
    def capabilities(self) -> frozenset[str]:
        """What every engine of the pool can do: `logprobs`, `confidence`, `score`, `cancel`, ..."""
        ...

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids of a rendered chat, ready for the assistant's first token."""
        ...

    def question(self, text: str) -> str:
        """`text` as the user's next turn after an assistant's, rendered up to the assistant's first token."""
        ...

    def count_tokens(self, text: str) -> int:
        """Tokens of a rendered text."""
        ...

    def tokens(self, text: str) -> tuple[int, ...]:
        """Token ids of a plain text, to stand behind a path."""
        ...

    def follow_up(self, context: Context, text: str) -> tuple[int, ...]:
        """Token ids of the user's next turn behind an assistant's that ends with `context`."""
        ...

    async def expand(self, wave: Sequence[Expansion], keep: Keep | None = None) -> list[Outcome]:
        """Grow all expansions; outcomes in the order of the wave. keep: called with each as it comes."""
        ...

    def launch(self, wave: Sequence[Expansion]) -> Flight:
        """Start all expansions, each by itself so that it can be cancelled; needs the capability `cancel`."""
        ...

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        """P(yes) for each request, in order."""
        ...

    async def note_scores(self, scores: Sequence[tuple[Context, float, int]]) -> None:
        """Tell the block index (path, score, depth) of judged nodes, for omega = score / (depth + 1)."""
        ...

    async def finish(self, problem_id: str, contexts: Sequence[Context]) -> None:
        """The search of this problem is over; `contexts` are its prompts."""
        ...

    async def release(self, contexts: Sequence[Context]) -> None:
        """Branches at and below these paths are not needed any more."""
        ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """One path put before a verifier. `text` is the whole path's text, `steps` the texts step by step."""

    problem: Problem
    node_id: str
    context: Context
    steps: tuple[str, ...]
    complete: bool
    engine: str = ""
    confidence: float | None = None

    @property
    def text(self) -> str:
        return "".join(self.steps)


KeepVerdict = Callable[[int, Verdict], None]
"""Takes the verdict of the i-th path of a batch as soon as it is there."""


class Verifier(Protocol):
    """Judges paths. Returns one verdict per candidate, in order; a failure is a verdict with an error.

    May have `tokens_to_score(batch) -> int`, the tokens that `score` would feed, to report what skipping saves, and
    `kept(problem) -> Sequence[Context]`, paths of its own that engines need not hold once the search is over; and be
    `Piecewise`.
    """

    @property
    def needs(self) -> frozenset[str]:
        """Engine capabilities this verifier uses."""
        ...

    async def score(self, batch: Sequence[Candidate]) -> list[Verdict]: ...


@runtime_checkable
class Piecewise(Protocol):
    """A verifier that judges paths one by one: what it has judged before its time runs out is kept."""

    async def score_each(self, batch: Sequence[Candidate], keep: KeepVerdict) -> None:
        """As `score`, but each verdict is handed to `keep`."""
        ...
