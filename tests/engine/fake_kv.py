"""KV payloads that carry their tokens and know the buffer they lie in, so that tests see what was moved and shared."""

from dataclasses import dataclass, field

BYTES = 10


@dataclass(eq=False)
class Buffer:
    tokens: tuple
    where: str


@dataclass(frozen=True)
class FakeKV:
    buffer: Buffer = field(compare=False)
    start: int
    stop: int

    @classmethod
    def of(cls, tokens, where="device"):
        return cls(Buffer(tuple(tokens), where), 0, len(tokens))

    @property
    def tokens(self):
        return self.buffer.tokens[self.start : self.stop]

    @property
    def where(self):
        return self.buffer.where

    @property
    def nbytes(self):
        return (self.stop - self.start) * BYTES

    @property
    def store(self):
        return id(self.buffer), len(self.buffer.tokens) * BYTES

    def split(self, at):
        middle = self.start + at
        return FakeKV(self.buffer, self.start, middle), FakeKV(self.buffer, middle, self.stop)

    def copy(self):
        return FakeKV.of(self.tokens, self.where)

    def to_host(self):
        return FakeKV.of(self.tokens, "host")

    def to_device(self):
        return FakeKV.of(self.tokens, "device")


def cut(tokens):
    """Payloads of a path's parts, as `KVTree.insert` and `store` ask for them."""
    return lambda start, stop: FakeKV.of(tokens[start:stop])


def store(tree, tokens, waste=None):
    """waste: the path lies in a buffer of its own that nobody else keeps, with so many tokens of room left."""
    if waste is None:
        return tree.store(tokens, cut(tokens), BYTES)
    buffer = Buffer((*tokens, *[None] * waste), "device")
    return tree.store(tokens, lambda start, stop: FakeKV(buffer, start, stop), BYTES, len(buffer.tokens) * BYTES)
