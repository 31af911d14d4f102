"""Solutions as a reward model reads them: token segments of the problem and of each step, and where to look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from engine.base import Segments, Usage
from engine.tokenizer import HFCodec

Reading = Literal["steps", "whole"]
_FREE = Usage()


@dataclass(frozen=True, slots=True)
class RewardQuery:
    """A solution of a problem so far, step by step, as texts."""

    problem: str
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rewards:
    """One value in [0, 1] a step, or one for the whole. usage: scored are tokens read for a value, prefilled all other
    tokens processed; a token of several paths of a call is booked once, with the first of them."""

    values: tuple[float, ...] = ()
    usage: Usage = _FREE
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Solution:
    """segments: the problem first. wanted: segments at whose last token the head is read. tail: the last segment closes
    the text, and what continues the solution does not continue behind it."""

    segments: Segments
    wanted: tuple[int, ...]
    tail: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """reading "steps" (PRM): the head is read behind each step; "whole" (ORM): once, behind the solution and what
    closes the assistant's turn.

    separator: stands behind each step, as in TRL's PRMTrainer tokenised by itself, and so is each step. The head is
    read at its last token that is not white space, if it has one; white space behind that opens the next step.
    """

    codec: HFCodec
    reading: Reading
    separator: str = "\n"

    def solution(self, problem: str, steps: Sequence[str]) -> Solution:
        prompt = self.codec.begin([{"role": "user", "content": problem.strip()}])
        segments = self._steps(steps) if self.reading == "steps" else self._whole(steps)
        last = len(segments)
        wanted = tuple(range(1, last + 1)) if self.reading == "steps" else (last,)
        end = self.codec.encode(self.codec.turn_end()) if self.reading == "whole" else []
        if end:
            segments, wanted = [*segments, end], (last + 1,)
        return Solution((tuple(prompt), *map(tuple, segments)), wanted, bool(end))

    def _steps(self, steps: Sequence[str]) -> list[list[int]]:
        mark = self.separator.rstrip() or self.separator
        between = self.separator[len(mark) :]
        marked = self.codec.encode(mark)
        texts = [step.strip() if i == 0 else between + step.strip() for i, step in enumerate(steps)]
        return [[*self.codec.encode(text), *marked] for text in texts]

    def _whole(self, steps: Sequence[str]) -> list[list[int]]:
        """White space behind a step belongs to the next one, so that a solution's end is the same when it goes on."""
        segments: list[list[int]] = []
        before = ""
        for step in steps:
            text = step.rstrip()
            if tokens := self.codec.encode(before + text if segments else text.lstrip()):
                segments.append(tokens)
            before = step[len(text) :]
        return segments
