"""The most one search can cost, before it runs: what the strategy can ask for, cut by the budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from search.budget import Budget
from search.strategies.base import Bounded, Strategy
from search.types import Sampling


@dataclass(frozen=True, slots=True)
class Estimate:
    """Upper bounds; None where neither the strategy nor the budget gives one. A run never exceeds them, whatever CGEE
    skips and whatever siblings are merged: both only take away.

    calls: of engines, to expand; calls repeated after a failure come on top. Tokens bound neither these nor expansions
    nor samples: what fails or is empty has none. verifier_calls: batches. generated: tokens drawn. verified: tokens of
    questions read. kv_tokens, kv_bytes: of prompts and tree, each token once, on each engine that comes to hold all of
    it; buffers of running rows and questions come on top. seconds: wall clock, of the budget.
    """

    calls: int | None
    expansions: int | None
    samples: int | None
    generated: int | None
    nodes: int | None
    depth: int | None
    verifications: int | None
    verifier_calls: int | None
    verified: int | None
    kv_tokens: int | None
    kv_bytes: int | None
    seconds: float | None

    def to_json(self) -> dict[str, int | float | None]:
        return asdict(self)


def estimate(
    strategy: Strategy,
    sampling: Sampling,
    budget: Budget | None = None,
    *,
    prompt_tokens: Sequence[int],
    question_tokens: int | None = 0,
    prior_tokens: int = 0,
    follow_up_tokens: int = 0,
    kv_bytes_per_token: int | None = None,
) -> Estimate:
    """prompt_tokens: of each prompt variant, and of other paths whose KV is held. question_tokens: the longest question
    of the verifier, 0 if it asks none of an engine, None where that depends on what is asked about. prior_tokens: read
    once, before the first question. follow_up_tokens: the longest request put behind a path (`search.follow_up`).
    """
    budget = budget or Budget()
    most = strategy.ceiling(sampling) if isinstance(strategy, Bounded) else None
    generated = least(most.tokens if most else None, budget.tokens)
    expansions = least(most.expansions if most else None, budget.expansions)
    samples = most.samples if most else None
    nodes = least(samples, generated, budget.nodes)
    judged = least(nodes, budget.verifications) if strategy.judges else 0
    kv_tokens = None
    if generated is not None:
        follow_ups = least(most.follow_ups if most else 0, expansions) or 0
        restated = most.restated if most else 0
        kv_tokens = sum(prompt_tokens) + generated + follow_up_tokens * follow_ups + restated
    return Estimate(
        calls=expansions,
        expansions=expansions,
        samples=samples,
        generated=generated,
        nodes=nodes,
        depth=least(most.depth if most else None, nodes),
        verifications=judged,
        verifier_calls=least(judged, expansions),
        verified=_verified(judged, question_tokens, prior_tokens),
        kv_tokens=kv_tokens,
        kv_bytes=None if kv_tokens is None or kv_bytes_per_token is None else kv_tokens * kv_bytes_per_token,
        seconds=budget.seconds,
    )


def _verified(judged: int | None, question_tokens: int | None, prior_tokens: int) -> int | None:
    if judged == 0:
        return 0
    return None if judged is None or question_tokens is None else judged * question_tokens + prior_tokens


def least(*bounds: int | None) -> int | None:
    """The smallest of the bounds that are known."""
    return min((bound for bound in bounds if bound is not None), default=None)
