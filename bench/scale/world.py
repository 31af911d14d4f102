"""What simulated engines write: seeded steps of given length, and a verifier that costs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.base import stream_key
from search.ports import Candidate
from search.types import Expansion, Sample, Verdict

_EOS = 256


@dataclass(frozen=True, slots=True)
class World:
    """step: mean tokens of a step, each step between half and one and a half of it. A path ends after shortest to
    longest steps, the same number in all of a tree. outputs: what the orders of a trace write, by id.
    """

    step: int
    shortest: int = 6
    longest: int = 10
    outputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def samples(self, order: Expansion) -> tuple[Sample, ...]:
        """A function of the order alone."""
        indices = range(order.first_sample, order.first_sample + order.n)
        return tuple(self._sample(order, index) for index in indices)

    def depth(self, problem_id: str, seed: int) -> int:
        span = self.longest - self.shortest + 1
        return self.shortest + stream_key("depth", seed, problem_id) % span

    def _sample(self, order: Expansion, index: int) -> Sample:
        if order.id in self.outputs:
            return Sample(".", self.outputs[order.id], "step", index)
        key = stream_key(order.seed, order.problem_id, order.node_id, index)
        length = min(max(self.step // 2 + key % (self.step + 1), 2), order.sampling.max_tokens)
        last = len(order.context) >= self.depth(order.problem_id, order.seed)
        text = f"Answer: {key % 97}" if last else f"{key % 100003} is a step.\n\n"
        tokens = (key % (1 << 31), *(1,) * (length - 2), _EOS if last else 10)
        return Sample(text, tokens, "eos" if last else "step", index, -0.1 * length, (key % 1000) / 1000)


class FreeVerifier:
    """A score in [0, 1) that depends on the node alone."""

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    async def score(self, batch: Sequence[Candidate]) -> list[Verdict]:
        return [Verdict((stream_key("score", c.problem.id, c.node_id) % 1000) / 1000, "free") for c in batch]


@dataclass(frozen=True, slots=True)
class PromptCodec:
    """A prompt of `shared` tokens that all problems begin with, then tokens of its own up to `length`."""

    length: int
    shared: int = 0

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset({_EOS})

    @property
    def context_length(self) -> int:
        return 1 << 20

    def encode(self, text: str) -> list[int]:
        own = stream_key(text) % (1 << 31)
        return [2] * self.shared + [own] + [3] * max(self.length - self.shared - 1, 1)

    def decode(self, token_ids: Sequence[int]) -> str:
        return ""

    def render(self, messages: Sequence[object]) -> str:
        return repr(messages)

    def next_turn(self, text: str) -> str:
        return text
