"""A step's text as its tokens come: what they add to the text of the path, of which it is one part."""

from __future__ import annotations

from collections.abc import Sequence

from engine.base import Codec

_LEAST = 4
"""Tokens that are decoded for their effect on those behind them, more where they begin inside a character."""
_PIECE = 16
_HELD = 3
"""Most tokens at the end that are bytes of one character that is not whole yet."""
_BROKEN = "\ufffd"


class StepText:
    """before: the path's generated tokens, which end where the step begins. Decoders drop a text's leading space, so a
    step decoded alone may lose it. Bytes at the end that are no whole character yet belong to the next step.

    Each token is decoded with at most about `_PIECE` others, so that long steps cost what their length does.
    """

    def __init__(self, codec: Codec, before: Sequence[int]) -> None:
        self._codec = codec
        self._before, self._head = self._end_of(before)
        self._pending: list[int] = []
        self._done = self._new = ""

    def add(self, token: int) -> None:
        self._pending.append(token)
        tokens = [*self._before, *self._pending]
        text, held = self._whole(tokens)
        self._new = text[len(self._head) :]
        if len(self._pending) >= _PIECE and self._new and not held:
            self._before, self._head = self._end_of(tokens)
            self._done, self._new, self._pending = self._done + self._new, "", []

    def read(self, ended: bool = False) -> str:
        """The text so far; ended: the path goes on no more, so that what is no character is shown as such."""
        if ended and self._pending:
            return self._done + self._codec.decode([*self._before, *self._pending])[len(self._head) :]
        return self._done + self._new

    def _end_of(self, tokens: Sequence[int]) -> tuple[Sequence[int], str]:
        """The last of these tokens, from a whole character on, and the text that they alone give."""
        for count in (_LEAST << n for n in range(len(tokens).bit_length() + 1)):
            last = tokens[max(len(tokens) - count, 0) :]
            text, _ = self._whole(last)
            if text and not text.startswith(_BROKEN):
                break
        return last, text

    def _whole(self, tokens: Sequence[int]) -> tuple[str, int]:
        """Text of these tokens without those that end it inside a character, and how many these are. Where no whole
        character ends near, the bytes never become one, and are text as they are."""
        for held in range(min(_HELD, len(tokens)) + 1):
            text = self._codec.decode(tokens[: len(tokens) - held])
            if not text.endswith(_BROKEN):
                return text, held
        return self._codec.decode(tokens), 0
