"""Between search's orders and the engine's token requests."""

from __future__ import annotations

from engine.base import (
    Branch,
    BranchRequest,
    BranchResult,
    LayerExit,
    PruneRule,
    ScoreQuery,
    ScoreResult,
    StepRule,
    Usage,
    stream_key,
)
from search.types import Cost, Expansion, Outcome, Sample, Score, ScoreRequest


def to_request(order: Expansion, request_id: str) -> BranchRequest:
    """The engine's request; sample i's stream depends on (seed, problem, node, i) only."""
    sampling, boundary, prune = order.sampling, order.sampling.boundary, order.sampling.prune
    indices = range(order.first_sample, order.first_sample + order.n)
    return BranchRequest(
        id=request_id,
        path=order.context,
        streams=tuple(stream_key(order.seed, order.problem_id, order.node_id, i) for i in indices),
        rule=StepRule(
            max_tokens=sampling.max_tokens,
            delimiter=boundary.delimiter,
            regex=boundary.regex,
            tokens=boundary.tokens,
            fn=boundary.fn,
            stop=sampling.stop,
        ),
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        deadline_s=order.deadline_s,
        tiers=None if order.tiers is None else frozenset(order.tiers),
        prune=None if prune is None else PruneRule(prune.window, prune.floor),
    )


def to_outcome(order: Expansion, result: BranchResult, engine: str) -> Outcome:
    samples = tuple(_sample(branch, order.first_sample + i) for i, branch in enumerate(result.branches))
    return Outcome(
        expansion_id=order.id,
        problem_id=order.problem_id,
        node_id=order.node_id,
        samples=samples,
        engine=engine,
        cost=cost_of(result.usage),
        error=result.error,
    )


def to_query(request: ScoreRequest) -> ScoreQuery:
    rule = request.layer_exit
    layer_exit = None if rule is None else LayerExit(rule.mode, rule.threshold)
    return ScoreQuery(request.id, request.context, request.question, layer_exit, values=request.values)


def to_score(result: ScoreResult, engine: str) -> Score:
    return Score(result.id, result.p_yes, engine, cost_of(result.usage), result.error)


def _sample(branch: Branch, index: int) -> Sample:
    return Sample(
        branch.text, branch.token_ids, branch.finish, index, branch.logprob, branch.confidence, lowest=branch.lowest
    )


def cost_of(usage: Usage) -> Cost:
    """What a call cost, in search's terms."""
    return Cost(
        generated=usage.generated,
        prefilled=usage.prefilled,
        verified=usage.scored,
        reused=usage.reused,
        actual_hit=usage.held,
        seconds=usage.seconds,
        exits=usage.exits,
        layer_rows=usage.layer_rows,
        layer_rows_full=usage.layer_rows_full,
    )
