"""How many bytes of KV rows need behind a path, from admission to their end: known before anything is allocated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.attention import BLOCK
from engine.kv import KVShape, adoptable, blocks, leading
from engine.kv_tree import Segment


@dataclass(frozen=True, slots=True)
class Plan:
    """Bytes. restored: held tokens that come back from the host; buffer, clone: where the missing tokens are computed,
    and their copy for the tree (0 if the tree takes the buffer); stored: what of them stays in the tree.

    shared: the rows' copy of a prefix that lies in several buffers; row: a row's buffer at its longest, `start` when
    it begins.
    """

    restored: int
    buffer: int
    clone: int
    stored: int
    shared: int
    start: int
    row: int

    def rebuild(self, rows: int) -> int:
        """The K of `rows` rows once more while their buffers grow, or of all but one while that one leaves."""
        return (rows if self.row > self.start else rows - 1) * self.row // 2

    def running(self, rows: int) -> int:
        """While rows decode, but for rebuilding."""
        return self.shared + rows * self.row

    def most(self, rows: int) -> int:
        """From the first token computed on, but for rebuilding and restoring."""
        return max(self.buffer + self.clone, self.stored + self.running(rows))


def plan(shape: KVShape, length: int, new_tokens: int, held: Sequence[Segment] = ()) -> Plan:
    """For rows that append up to `new_tokens` tokens to `length` path tokens, the first of them held by `held`."""
    at = held[-1].end if held else 0
    lead = leading(held)
    missing, columns = length - at, blocks(length - at // BLOCK * BLOCK)
    adopted = adoptable(missing, columns)
    unit = shape.bytes_per_token
    own = length % BLOCK
    return Plan(
        restored=sum(segment.payload.nbytes for segment in held if segment.state == "host"),
        buffer=(_copied(lead, at) + columns) * unit if missing else 0,
        clone=missing * unit if missing and not adopted else 0,
        stored=(columns if adopted else missing) * unit if missing else 0,
        shared=_copied(lead if held else length, length) * unit,
        start=blocks(own + 1) * unit,
        row=blocks(own + new_tokens) * unit,
    )


def needed_alone(shape: KVShape, length: int, new_tokens: int) -> int:
    """Bytes for one row when nothing else is held."""
    alone = plan(shape, length, new_tokens)
    return max(alone.buffer + alone.clone, alone.stored + alone.running(1) + alone.rebuild(1))


def _copied(lead: int, tokens: int) -> int:
    """Tokens of the shared whole blocks among `tokens`, unless the leading buffer has them all."""
    shared = tokens // BLOCK * BLOCK
    return 0 if lead >= shared else shared
