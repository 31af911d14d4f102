"""The bound of one search on a configured model: prompts, questions and KV counted with its tokenizer and shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from actors.spec import EngineSpec
from engine.base import Codec, begin
from orchestrator.config import REWARDS, Config
from search.budget import Budget
from search.estimate import Estimate, estimate
from search.ports import Message, Verifier
from search.prompts import CONTENT_FREE, PROPOSE, REFINE, VOTE_QUESTION, ChatPrompt
from search.strategies.base import Strategy
from search.types import Problem
from search.verifiers.asking import problem_messages, solution_question
from search.verifiers.self_evaluation import SelfEvaluation
from search.verifiers.value import MOST_REPLY, ValueEvaluation, value_questions
from search.verifiers.vote import VoteEvaluation

_MANY = 999


def estimate_for(
    config: Config,
    spec: EngineSpec,
    codec: Codec,
    prompt: ChatPrompt,
    problem: Problem,
    strategy: Strategy,
    verifier: Verifier | None,
    budget: Budget,
) -> Estimate:
    """The strategy's bound for this problem; `search.estimate.Estimate` says what is in it.

    Nothing bounds what a separate prompt or a reward model reads, nor the KV of a list of paths to vote on: the text of
    branches is tokenised anew for it.
    """

    def turn(text: str) -> int:
        return len(codec.encode(codec.next_turn(text)))

    def begun(messages: Sequence[Message]) -> int:
        return len(begin(codec, messages))

    questions: tuple[str, ...] = ()
    held: list[int] = []
    priors = 0
    separate = isinstance(verifier, SelfEvaluation | ValueEvaluation) and verifier.prompt == "separate"
    unbounded = separate or (verifier is not None and config.verifier in REWARDS)
    reply = 0
    if isinstance(verifier, SelfEvaluation):
        questions = (verifier.step_question, verifier.answer_question)
        nothing = Problem(CONTENT_FREE)
        if separate:
            held += [begun(problem_messages(asked)) for asked in (problem, nothing)[: 1 + verifier.debias]]
        elif verifier.debias:
            held.append(begun(prompt.messages(nothing)))
        if verifier.debias:
            priors = sum(_prior_tokens(codec, question, separate) for question in set(questions))
    elif isinstance(verifier, ValueEvaluation):
        questions = value_questions(verifier.scale)
        reply = 0 if "score" in spec.capabilities else MOST_REPLY
        held += [begun(problem_messages(problem))] if separate else []
    elif isinstance(verifier, VoteEvaluation):
        questions = (VOTE_QUESTION.format(i=_MANY),)
    found = estimate(
        strategy,
        config.sampling,
        budget,
        prompt_tokens=[*(begun(prompt.messages(problem, hint)) for hint in strategy.hints or ("",)), *held],
        question_tokens=None if unbounded else max((turn(text) + 1 + reply for text in questions), default=0),
        prior_tokens=priors,
        follow_up_tokens=max(turn(text) for text in (PROPOSE.format(n=_MANY), REFINE)),
        kv_bytes_per_token=spec.kv_bytes_per_token,
    )
    return replace(found, kv_tokens=None, kv_bytes=None) if isinstance(verifier, VoteEvaluation) else found


def _prior_tokens(codec: Codec, question: str, separate: bool) -> int:
    """Read for one question about nothing, as `search.verifiers.asking` puts it; one token of the path comes on top."""
    before, turn = solution_question(CONTENT_FREE, question) if separate else (CONTENT_FREE, question)
    return len(codec.encode(before + codec.next_turn(turn))) + 1
