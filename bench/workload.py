"""What is measured: a long prefix of real text, branches told apart by short hints, a fixed number of new tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pydoc_data.topics import topics

from engine.base import Codec

Tokens = tuple[int, ...]
HINT_TOKENS = 8
_CHARACTERS = 200_000
_STRIDE = 997


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the grid. prefix: tokens of the shared prompt; new_tokens: tokens drawn for each branch."""

    prefix: int
    branches: int
    new_tokens: int

    @property
    def cold_tokens(self) -> int:
        """Distinct tokens of a cold expansion: one prefix, private suffixes."""
        return self.prefix + self.branches * (HINT_TOKENS + self.new_tokens)

    @property
    def second_tokens(self) -> int:
        """Distinct tokens when the second expansion has ended."""
        return self.cold_tokens + self.branches * (HINT_TOKENS + self.new_tokens)

    @property
    def longest(self) -> int:
        """Tokens of a branch of the second expansion."""
        return self.prefix + 2 * (HINT_TOKENS + self.new_tokens)


@dataclass(frozen=True, slots=True)
class Job:
    """One expansion: `new_tokens` greedy tokens behind each hint, all hints behind the shared segments.

    All hints have one length, so a left-padded batch of the prompts has no padding.
    """

    shared: tuple[Tokens, ...]
    hints: tuple[Tokens, ...]
    new_tokens: int

    @property
    def prefix(self) -> Tokens:
        return tuple(chain.from_iterable(self.shared))

    def prompts(self) -> list[list[int]]:
        prefix = self.prefix
        return [[*prefix, *hint] for hint in self.hints]

    def below(self, branch: int, drawn: Sequence[int], new_tokens: int) -> Job:
        """The expansion below a branch that drew `drawn`, with the same hints."""
        return Job((*self.shared, self.hints[branch], tuple(drawn)), self.hints, new_tokens)


class Text:
    """Jobs cut from the language reference that comes with Python: real text, the same on every machine."""

    def __init__(self, codec: Codec) -> None:
        words = "\n".join(topics[name] for name in sorted(topics))
        self._tokens = codec.encode(words[:_CHARACTERS])
        self._openings = list(dict.fromkeys(self._tokens))
        self._cut = 0

    def job(self, point: Point) -> Job:
        """A job whose prefix starts at a place, and with a token, of its own: no cache has seen it."""
        self._cut += 1
        text, at = self._tokens, self._cut * _STRIDE % len(self._tokens)
        prefix = (text * (1 + (at + point.prefix) // len(text)))[at : at + point.prefix]
        prefix[0] = self._openings[self._cut % len(self._openings)]
        return Job((tuple(prefix),), self.hints(point.branches), point.new_tokens)

    def hints(self, count: int) -> tuple[Tokens, ...]:
        """Passages of HINT_TOKENS tokens, no two of which start with the same token."""
        found: dict[int, Tokens] = {}
        for at in range(0, len(self._tokens) - HINT_TOKENS, HINT_TOKENS):
            passage = tuple(self._tokens[at : at + HINT_TOKENS])
            found.setdefault(passage[0], passage)
            if len(found) == count:
                return tuple(found.values())
        raise ValueError(f"the text has only {len(found)} hints with distinct first tokens; {count} asked for")
