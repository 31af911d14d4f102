"""Which verifier judges: the user's own, a named one, or the vote that a strategy asks for."""

from __future__ import annotations

from typing import Any

from orchestrator.config import Config, UsageError
from search.ports import Pool, Verifier
from search.strategies.base import Strategy
from search.verifiers.cached import Cached
from search.verifiers.checked import AnswerCheck
from search.verifiers.command import CommandVerifier
from search.verifiers.function import Confidence, FunctionVerifier
from search.verifiers.self_evaluation import SelfEvaluation
from search.verifiers.vote import VoteEvaluation


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
        return Cached(CommandVerifier(config.verifier_command, config.verifier_timeout_s))
    except ValueError as error:
        raise UsageError(f"config verifier='command': {error}") from None


def verifier_for(config: Config, own: Verifier | None, strategy: Strategy, pool: Pool) -> Verifier | None:
    """ValueError for a strategy that lets the model vote, together with another verifier."""
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
        "self_evaluation": SelfEvaluation(pool),
        "vote": VoteEvaluation(pool),
        "confidence": Confidence(),
        "checker": AnswerCheck(),
    }
    return named.get(config.verifier)
