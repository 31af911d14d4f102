"""A pool that reasons in a `search.world.World`: every sample is a function of its order, no text is read.

What was done on a path, and whether it was right, is in the path's token ids.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from search.ports import Context, Keep, Message
from search.types import Boundary, Cost, Expansion, Finish, Outcome, Sample, Score, ScoreRequest
from search.world import World

_PROMPT_TOKENS = 64
_QUESTION_TOKENS = 15
_STATE = 1 << 24
_MARK = re.compile(r"(?:Step (\d+) is|Check) ([0-9a-f]{8})\.")


@dataclass(frozen=True, slots=True)
class State:
    """Where a path stands: steps done, and whether all of them are right."""

    done: int = 0
    right: bool = True

    @property
    def token(self) -> int:
        return _STATE | self.done << 1 | int(self.right)

    @classmethod
    def of(cls, context: Context) -> State:
        """What the last state token of a path says."""
        tokens = (token for segment in reversed(context[1:]) for token in reversed(segment))
        token = next((token for token in tokens if token & _STATE), None)
        return cls() if token is None else cls((token ^ _STATE) >> 1, bool(token & 1))


@dataclass(frozen=True, slots=True)
class SimulatedPool:
    """`search.ports.Pool` in a world; every sample is a function of its order alone."""

    world: World

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset({"logprobs", "confidence", "score", "prune"})

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return (1,) * _PROMPT_TOKENS

    def question(self, text: str) -> str:
        return text

    def count_tokens(self, text: str) -> int:
        """Of a question: with the path's last token, what `score` counts."""
        return _QUESTION_TOKENS - 1

    def tokens(self, text: str) -> tuple[int, ...]:
        """Of a proposal: the state that its mark stands for."""
        found = _MARK.findall(text)
        if not found:
            return (1,) * max(len(text) // 4, 1)
        step, mark = found[-1]
        done = int(step) if step else self.world.depth
        return (State(done, bool(int(mark, 16) & 1)).token, *(1,) * (len(text) // 4))

    def follow_up(self, context: Context, text: str) -> tuple[int, ...]:
        """The first token is how many steps are asked for."""
        count = re.search(r"\d+", text)
        return (int(count[0]) if count else 1, *(1,) * (_QUESTION_TOKENS - 1))

    async def expand(self, wave: Sequence[Expansion], keep: Keep | None = None) -> list[Outcome]:
        outcomes = [self.outcome(order) for order in wave]
        if keep is not None:
            for outcome in outcomes:
                keep(outcome)
        return outcomes

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        return [self._score(request) for request in requests]

    async def note_scores(self, scores: Sequence[tuple[Context, float, int]]) -> None:
        """Nothing is evicted here."""

    async def finish(self, problem_id: str, contexts: Sequence[Context]) -> None:
        """Nothing is kept here."""

    async def release(self, contexts: Sequence[Context]) -> None:
        """Nothing is kept here."""

    def outcome(self, order: Expansion) -> Outcome:
        samples = tuple(self._sample(order, order.first_sample + i) for i in range(order.n))
        cost = Cost(generated=sum(len(sample.token_ids) for sample in samples))
        return Outcome(order.id, order.problem_id, order.node_id, samples, "simulated", cost)

    def _sample(self, order: Expansion, index: int) -> Sample:
        """At temperature 0 a function of the path alone."""
        drawn = (order.seed, index) if order.sampling.temperature else ("greedy",)
        writer = _Writer(self.world, order, self.world.draw(order.problem_id, order.node_id, *drawn))
        text, finish = writer.write()
        tokens = (writer.state.token, 2 + writer.draw.getrandbits(20), *(1,) * writer.count)[: writer.count]
        key = ("confidence", order.problem_id, text)
        confidence = self.world.judge(writer.state.right, self.world.confidence_auc, *key)
        return Sample(text, tokens, finish, index, -0.1 * writer.count, confidence, lowest=writer.lowest)

    def _score(self, request: ScoreRequest) -> Score:
        written = [token for segment in request.context[1:] for token in segment if token > 1]
        p_yes = self.world.judge(State.of(request.context).right, self.world.auc, request.id, written)
        return Score(request.id, p_yes, "simulated", Cost(verified=_QUESTION_TOKENS))


class _Writer:
    """One sample in the making, behind what its order's path says was done."""

    def __init__(self, world: World, order: Expansion, draw: random.Random) -> None:
        self.world, self.order, self.draw = world, order, draw
        self.state = State.of(order.context)
        self.count = 0
        self.chance = world.step_chance(order.problem_id)
        self.lowest: float | None = None

    def write(self) -> tuple[str, Finish]:
        """Steps up to the order's boundary or the answer, cut at its token limit."""
        if self.order.mode == "propose":
            return self._proposals()
        if self.order.mode == "refine":
            chance = self.world.keep if self.state.right else self.world.repair
            self.state = State(self.world.depth, self.draw.random() < chance)
        whole = self.order.sampling.boundary == Boundary.none()
        text = ""
        while self._room():
            ended = self.state.done == self.world.depth
            line = self._line()
            text += line
            unsure = self._unsure(text)
            if ended or not whole:
                return text, "eos" if ended else "step"
            if unsure:
                return text, "pruned"
        return f"{text}cut {self.draw.getrandbits(32):08x}", "length"

    def _unsure(self, text: str) -> bool:
        """Whether the newest group of tokens, here always a line, is below the order's floor."""
        rule = self.order.sampling.prune
        if rule is None:
            return False
        key = ("group", self.order.problem_id, text)
        confidence = self.world.judge(self.state.right, self.world.confidence_auc, *key)
        self.lowest = confidence if self.lowest is None else min(self.lowest, confidence)
        return rule.floor is not None and confidence < rule.floor

    def _proposals(self) -> tuple[str, Finish]:
        before, text = self.state, ""
        for i in range(self.order.context[-1][0]):
            self.state = before
            if not self._room():
                return f"{text}cut", "length"
            text += f"{i + 1}. {self._line().strip()}\n"
        return text, "eos"

    def _room(self) -> bool:
        """Counts the next line's tokens; False if the limit cuts it."""
        size = self.draw.randint(*self.world.tokens)
        limit = self.order.sampling.max_tokens - self.count
        self.count += min(size, limit)
        return size <= limit

    def _line(self) -> str:
        """The next step, or the answer behind the last one; the mark's last bit says whether it is right."""
        done, right = self.state.done, self.state.right
        if done == self.world.depth:
            answer = self.world.answer(self.order.problem_id, right, self.draw)
            return f"Check {self._mark(right)}. Answer: {answer}"
        self.state = State(done + 1, right and self.draw.random() < self.chance)
        return f"Step {done + 1} is {self._mark(self.state.right)}.\n\n"

    def _mark(self, right: bool) -> str:
        return f"{self.draw.getrandbits(31) << 1 | int(right):08x}"
