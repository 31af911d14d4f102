"""The model rates a state: the value prompt of Tree of Thoughts (Yao et al. 2023), read as an expectation.

The paper samples "sure", "likely" or "impossible" a few times and adds up their values. Here the probabilities of the
labels are read at one position, which is the mean of infinitely many samples, and nothing is generated. An engine
without scores writes one label at temperature 0 instead.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from search.ports import Candidate, Context, Pool
from search.prompts import VALUE_ANSWER, VALUE_STEP, ChatPrompt
from search.types import Boundary, Cost, Expansion, Outcome, Problem, Sampling, Score, ScoreRequest, Verdict
from search.verifiers.asking import Asking, asking

Values = tuple[tuple[str, float], ...]
SCALES: dict[str, Values] = {
    "words": (("sure", 1.0), ("likely", 0.5), ("impossible", 0.0)),
    "digits": tuple((str(digit), (digit - 1) / 8) for digit in range(1, 10)),
}
"""Labels and what they are worth. Ten has two digits, so that the numbers end at nine."""

_REPLIES = {
    "words": "Reply with one of the words sure, likely, impossible only.",
    "digits": "Reply with one digit only, from 1 for impossible to 9 for sure.",
}
MOST_REPLY = 16
"""Tokens of a written label, at most."""


@dataclass(frozen=True, slots=True)
class ValueEvaluation:
    """scale: "words", "digits", or "auto": words where a reply can begin with each as a single token of the model's.
    prompt, chat: as in `search.verifiers.self_evaluation.SelfEvaluation`.
    """

    pool: Pool
    scale: str = "auto"
    prompt: str = "continuation"
    chat: ChatPrompt = field(default_factory=ChatPrompt)

    def __post_init__(self) -> None:
        if self.scale not in ("auto", *SCALES):
            raise ValueError(f"value scale must be one of auto, {', '.join(SCALES)}, got {self.scale!r}")
        _ = self._asking

    @property
    def needs(self) -> frozenset[str]:
        """Any engine writes text; one that gives scores is read instead."""
        return frozenset()

    def tokens_to_score(self, batch: Sequence[Candidate]) -> int:
        """What is read behind held paths: each path's last token and the text of its question."""
        texts = Counter(self._asking.about(c, self._question(c))[1] for c in batch)
        return sum(count * (self.pool.count_tokens(text) + 1) for text, count in texts.items())

    def kept(self, problem: Problem) -> Sequence[Context]:
        """Paths that only this problem's verification used."""
        return self._asking.kept(problem)

    async def score(self, batch: Sequence[Candidate]) -> list[Verdict]:
        if "score" not in self.pool.capabilities:
            return await self._written(batch)
        scores = await self.pool.score([self._request(candidate) for candidate in batch])
        return [_read(score) for score in scores]

    @property
    def _asking(self) -> Asking:
        return asking(self.prompt, self.pool, self.chat)

    @property
    def _scale(self) -> str:
        if self.scale != "auto":
            return self.scale
        words = [word for word, _ in SCALES["words"]]
        alike = (words, [word.capitalize() for word in words])
        return "words" if any(all(self.pool.count_tokens(w) == 1 for w in each) for each in alike) else "digits"

    def _question(self, candidate: Candidate) -> str:
        return _rendered(self._scale, candidate.complete)

    def _request(self, candidate: Candidate) -> ScoreRequest:
        context, text = self._asking.about(candidate, self._question(candidate))
        name = f"{candidate.problem.id}/{candidate.node_id}"
        return ScoreRequest(name, context, text, candidate.engine, values=SCALES[self._scale])

    async def _written(self, batch: Sequence[Candidate]) -> list[Verdict]:
        """Let the engine write a label behind each question, and free what that left there."""
        orders = [self._order(candidate) for candidate in batch]
        outcomes = await self.pool.expand(orders)
        await self.pool.release([order.context for order in orders])
        values = dict(SCALES[self._scale])
        return [_parsed(outcome, order, values) for outcome, order in zip(outcomes, orders, strict=True)]

    def _order(self, candidate: Candidate) -> Expansion:
        question = self._question(candidate)
        context, text = self._asking.about(candidate, question)
        continues = self.prompt == "continuation"
        asked = self.pool.follow_up(context, question) if continues else self.pool.tokens(text)
        name = f"{candidate.problem.id}/{candidate.node_id}"
        sampling = Sampling(0.0, max_tokens=MOST_REPLY, boundary=Boundary.none())
        return Expansion(f"value/{name}", candidate.problem.id, candidate.node_id, (*context, asked), 1, sampling)


def value_questions(scale: str) -> tuple[str, ...]:
    """All that may be asked on this scale."""
    return tuple(_rendered(name, done) for name in SCALES if scale in ("auto", name) for done in (False, True))


def _rendered(scale: str, complete: bool) -> str:
    return (VALUE_ANSWER if complete else VALUE_STEP).format(reply=_REPLIES[scale])


def _read(score: Score) -> Verdict:
    return Verdict(score.p_yes, "value", score.cost, score.error)


def _parsed(outcome: Outcome, order: Expansion, values: dict[str, float]) -> Verdict:
    """The first label of the reply; no label is an error."""
    asked = len(order.context[-1])
    cost = Cost(
        prefilled=max(outcome.cost.prefilled - asked, 0),
        verified=asked + outcome.cost.generated,
        seconds={"score": sum(outcome.cost.seconds.values())},
    )
    if outcome.error is not None:
        return Verdict(None, "value", cost, outcome.error)
    text = "".join(sample.text for sample in outcome.samples)
    found = re.search(rf"\b(?:{'|'.join(values)})\b", text.lower())
    if found is None:
        return Verdict(None, "value", cost, f"the model wrote none of {', '.join(values)}: {text[:80]!r}")
    return Verdict(values[found[0]], "value", cost)
