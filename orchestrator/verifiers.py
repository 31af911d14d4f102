"""Which verifier judges: the user's own, a named one, or the vote that a strategy asks for."""

from __future__ import annotations

from typing import Any

from actors.reward_verifier import RewardVerifier
from orchestrator.config import REWARDS, Config, UsageError
from search.cgee.gate import Gate
from search.ports import Pool, Verifier
from search.prompts import ChatPrompt
from search.strategies.base import Strategy
from search.verifiers.cached import Cached
from search.verifiers.checked import AnswerCheck
from search.verifiers.command import CommandVerifier
from search.verifiers.function import Confidence, FunctionVerifier
from search.verifiers.self_evaluation import SelfEvaluation
from search.verifiers.value import ValueEvaluation
from search.verifiers.vote import VoteEvaluation


def chosen_verifier(config: Config, verifier: Any) -> tuple[Verifier | None, RewardVerifier | None]:
    """The verifier that asks no engine, and the reward model in it, whose actors start with the engines; None for none.

    verifier: as the user gave it.
    """
    reward = reward_verifier(config)
    return own_verifier(verifier) or command_verifier(config) or (Cached(reward) if reward else None), reward


def own_verifier(verifier: Any) -> Verifier | None:
    """A verifier object from what the user gave; None for a name (the configuration knows it) or None."""
    if verifier is None or isinstance(verifier, str):
        return None
    if hasattr(verifier, "score") and hasattr(verifier, "needs"):
        own: Verifier = verifier
        return own
    if callable(verifier):
        return FunctionVerifier(verifier)
    raise UsageError(f"verifier takes a name, a callable (problem, text) -> score, or a Verifier, got {verifier!r}")


def command_verifier(config: Config) -> Verifier | None:
    """The configured command, its verdicts remembered by content; None where another verifier is named."""
    if config.verifier != "command":
        if config.verifier_command:
            raise UsageError(
                f"config verifier_command={config.verifier_command!r} goes with verifier='command', "
                f"got verifier={config.verifier!r}"
            )
        return None
    try:
        timeout_s = config.verifier_timeout_s or CommandVerifier.timeout_s
        return Cached(CommandVerifier(config.verifier_command, timeout_s, aggregate=config.verifier_aggregate))
    except ValueError as error:
        raise UsageError(f"config verifier='command': {error}") from None


def reward_verifier(config: Config) -> RewardVerifier | None:
    """The configured reward model, checked and not loaded; None where another verifier is named."""
    if config.verifier not in REWARDS:
        return None
    try:
        timeout_s = config.verifier_timeout_s or RewardVerifier.timeout_s
        return RewardVerifier(config.reward_spec, config.verifier_aggregate, timeout_s)
    except ValueError as error:
        raise UsageError(f"config verifier={config.verifier!r}: {error}") from None


def verifier_name(config: Config, own: Verifier | None) -> str:
    """Who scores nodes, as a calibration record or a batch job names it."""
    if config.verifier == "command":
        return f"command:{config.verifier_command}"
    if config.verifier in REWARDS:
        return f"{config.verifier}:{config.reward_spec.fingerprint}:{config.verifier_aggregate}"
    judge = getattr(own, "fn", own)
    return config.verifier if judge is None else f"own:{getattr(judge, '__qualname__', type(judge).__qualname__)}"


def require_judge(config: Config, verifier: Verifier | None, gate: Gate | None) -> None:
    """ValueError for a calibrated rule where a strategy lets the model vote and the record is for another verifier."""
    if gate and gate.rule.name == "calibrated" and isinstance(verifier, VoteEvaluation) and config.verifier != "vote":
        raise ValueError(
            f"option evaluate='vote' lets the model vote, and cgee_record is for verifier={config.verifier!r}; "
            f"say cgee='off', or evaluate='value'"
        )


def verifier_for(
    config: Config, own: Verifier | None, strategy: Strategy, pool: Pool, chat: ChatPrompt, priors: dict[str, float]
) -> Verifier | None:
    """chat: template of the branches. priors: of self-evaluation, shared by all its searches.

    ValueError for a strategy that lets the model vote, together with another verifier.
    """
    if not strategy.judges:
        return None
    if getattr(strategy, "evaluate", "value") == "vote":
        if own is not None or config.verifier not in ("self_evaluation", "vote"):
            raise ValueError(
                f"option evaluate='vote' lets the model vote; leave out verifier={config.verifier!r}, "
                f"or say evaluate='value'"
            )
        return VoteEvaluation(pool)
    if own is not None:
        return own
    named: dict[str, Verifier] = {
        "self_evaluation": SelfEvaluation(
            pool,
            prompt=config.verify_prompt,
            debias=config.verify_debias,
            layer_exit=config.exit_rule,
            chat=chat,
            priors=priors,
        ),
        "value": ValueEvaluation(pool, scale=config.value_scale, prompt=config.verify_prompt, chat=chat),
        "vote": VoteEvaluation(pool),
        "confidence": Confidence(),
        "checker": AnswerCheck(),
    }
    return named.get(config.verifier)
