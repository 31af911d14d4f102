"""The bound of one search on a configured model: prompts, questions and KV counted with its tokenizer and shape."""

from __future__ import annotations

from actors.spec import EngineSpec
from engine.base import Codec
from orchestrator.config import Config
from search.budget import Budget
from search.estimate import Estimate, estimate
from search.ports import Verifier
from search.prompts import PROPOSE, REFINE, VOTE_QUESTION, ChatPrompt
from search.strategies.base import Strategy
from search.types import Problem
from search.verifiers.self_evaluation import SelfEvaluation
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
    """The strategy's bound for this problem; `search.estimate.Estimate` says what is in it."""

    def turn(text: str) -> int:
        return len(codec.encode(codec.next_turn(text)))

    questions: tuple[str, ...] = ()
    if isinstance(verifier, SelfEvaluation):
        questions = (verifier.step_question, verifier.answer_question)
    elif isinstance(verifier, VoteEvaluation):
        questions = (VOTE_QUESTION.format(i=_MANY),)
    return estimate(
        strategy,
        config.sampling,
        budget,
        prompt_tokens=[
            len(codec.encode(codec.render(prompt.messages(problem, hint)))) for hint in strategy.hints or ("",)
        ],
        question_tokens=max((turn(text) + 1 for text in questions), default=0),
        follow_up_tokens=max(turn(text) for text in (PROPOSE.format(n=_MANY), REFINE)),
        kv_bytes_per_token=spec.kv_bytes_per_token,
    )
