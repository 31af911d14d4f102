"""What one row attends to: spans of KV that it shares with others, then tokens of its own."""

from __future__ import annotations

from collections.abc import Sequence

from engine.kv import KVShape, TensorKV

CHUNK = 64


class RowKV:
    """spans hold positions [0, start); own tokens follow, in buffers that are added as they are needed.

    most: own tokens there can come to be. chunk: tokens of a buffer; the last one is only as large as `most` needs.
    """

    def __init__(self, shape: KVShape, spans: Sequence[TensorKV], most: int, chunk: int = CHUNK) -> None:
        self.shape = shape
        self.spans = tuple(span for span in spans if span.tokens)
        self.start = sum(span.tokens for span in self.spans)
        self.most = most
        self.chunk = chunk
        self.own: list[TensorKV] = []
        self.filled = 0

    @property
    def length(self) -> int:
        """Tokens that the next one can attend to."""
        return self.start + self.filled

    @property
    def room(self) -> int:
        """Own tokens that the buffers hold."""
        return sum(buffer.tokens for buffer in self.own)

    @property
    def nbytes(self) -> int:
        return self.room * self.shape.bytes_per_token

    def missing_bytes(self, tokens: int) -> int:
        """Bytes that `reserve` would allocate."""
        return sum(self._sizes(tokens)) * self.shape.bytes_per_token

    def reserve(self, tokens: int) -> None:
        """Room for `tokens` more tokens."""
        self.own += [self.shape.empty(size) for size in self._sizes(tokens)]

    def _sizes(self, tokens: int) -> list[int]:
        sizes: list[int] = []
        room = self.room
        while self.filled + tokens > room:
            sizes.append(max(min(self.chunk, self.most - room), 1))
            room += sizes[-1]
        return sizes

    def pieces(self, start: int, stop: int) -> list[TensorKV]:
        """Views of the own tokens at positions [start, stop)."""
        found, at = [], self.start
        for buffer in self.own:
            first, last = max(start - at, 0), min(stop - at, buffer.tokens)
            if first < last:
                found.append(buffer.cut(first, last))
            at += buffer.tokens
        return found

    def seen(self, tokens: int) -> list[TensorKV]:
        """All spans, in order, as they are when `tokens` more tokens are in place."""
        return [*self.spans, *self.pieces(self.start, self.length + tokens)]

    def payload(self, start: int, stop: int) -> TensorKV:
        """Own tokens at positions [start, stop): a view where one buffer has them all."""
        return TensorKV.joined(self.pieces(start, stop), self.shape.device)
