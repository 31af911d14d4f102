"""SimulatedEngine: seeded reasoning text over the real KV tree, with a latency model. No torch, no weights.

The hidden truth of a problem is a number derived from its prompt. Every step is right with probability `p_step`, a
function of the path's text alone, so that equal paths are judged equally on every engine. A wrong step leads to a wrong
answer; P(yes) tells right from wrong paths with noise `judge_noise`.
"""

from __future__ import annotations

from typing import Any

from engine.base import stream_key
from engine.text_engine import TextEngine

_STEP = "\n\n"


class SimulatedEngine(TextEngine):
    """depth: steps a path may take before it answers, drawn from [2, depth]. seed varies the whole world."""

    def __init__(
        self, *, seed: int = 0, p_step: float = 0.8, judge_noise: float = 0.25, depth: int = 4, **options: Any
    ) -> None:
        super().__init__(fingerprint="simulated", **options)
        self.seed = seed
        self.p_step = p_step
        self.judge_noise = judge_noise
        self.depth = depth

    def truth(self, prompt: str) -> int:
        """The right answer of the problem behind a rendered prompt."""
        return 2 + stream_key(self.seed, "truth", prompt) % 97

    def write(self, path: tuple[str, ...], stream: int) -> str:
        """The remaining steps and the answer."""
        text = "".join(path[1:])
        written = ""
        step = text.count(_STEP) + 1
        length = 2 + stream_key(self.seed, "length", stream) % max(self.depth - 1, 1)
        while step < length:
            part = self._step(stream, step)
            written += part
            step += 1
        return written + f"Answer: {self._answer(path[0], text + written, stream)}"

    def judge(self, path: tuple[str, ...], question: str) -> float:
        right = self.right("".join(path[1:]), path[0])
        noise = self._unit("judge", *path) - 0.5
        return min(max((0.7 if right else 0.3) + 2 * self.judge_noise * noise, 0.0), 1.0)

    def right(self, text: str, prompt: str) -> bool:
        """Whether every step so far is right, and the answer if one is stated."""
        steps, _, answer = text.partition("Answer: ")
        if answer:
            return answer.strip() == str(self.truth(prompt))
        return self._steps_right(steps)

    def _answer(self, prompt: str, text: str, stream: int) -> int:
        truth = self.truth(prompt)
        if self._steps_right(text) and self._unit("answer", stream) < self.p_step:
            return truth
        return 2 + (truth + stream_key(self.seed, "wrong", stream) % 5) % 97

    def _steps_right(self, text: str) -> bool:
        parts = text.split(_STEP)
        return all(self._unit("step", *parts[: i + 1]) < self.p_step for i in range(len(parts) - 1))

    def _step(self, stream: int, step: int) -> str:
        a, b = (2 + stream_key(self.seed, which, stream, step) % 48 for which in ("a", "b"))
        return f"Step {step}: {a} + {b} makes {a + b}.{_STEP}"

    def _unit(self, *parts: object) -> float:
        """Uniform in [0, 1), a function of `parts` only."""
        return (stream_key(self.seed, *parts) & 0xFFFFFFFF) / (1 << 32)
