"""Verification by continuation on the embedded model: the numbers of re-encoding, for a few percent of its tokens."""

import asyncio
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from actors.dispatcher import Dispatcher
from actors.handles import InlineEngine, InlineIndex
from actors.rsbcm import RSBCM
from engine.base import BranchRequest, LayerExit, ScoreQuery, StepRule, flat, stream_key
from engine.loading import load_model
from engine.local import LocalEngine
from engine.models import ModelNotFoundError, resolve
from search.ports import Candidate
from search.prompts import ANSWER_QUESTION, ChatPrompt
from search.types import Problem
from search.verifiers.self_evaluation import SelfEvaluation

try:
    SOURCE = resolve("embedded")
except ModelNotFoundError:
    pytest.skip("the embedded model is not installed", allow_module_level=True)

pytestmark = pytest.mark.slow
ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "data" / "gsm8k_3.jsonl").read_text().splitlines()]
PREFIX, BRANCHES, NEW = 1024, 8, 32


@pytest.fixture(scope="module")
def engine() -> LocalEngine:
    return LocalEngine.load("embedded", device="cpu", dtype="float32")


def worked(engine: LocalEngine) -> Problem:
    """A problem behind enough examples that its prompt has about PREFIX tokens."""
    example = "\n\n".join(f"Question: {row['question']}\nAnswer: {row['answer']}" for row in ROWS)
    size = len(engine.codec.encode(example))
    return Problem("\n\n".join([example] * round(PREFIX / size)) + f"\n\nQuestion: {ROWS[0]['question']}")


@pytest.fixture(scope="module")
def branches(engine: LocalEngine) -> list[Candidate]:
    """Branches of one problem, ragged, whose KV is held."""
    problem = worked(engine)
    prompt = tuple(engine.codec.encode(engine.codec.render(ChatPrompt().messages(problem))))
    asks = [
        BranchRequest(str(i), (prompt,), (stream_key("branch", i),), StepRule(max_tokens=NEW - i))
        for i in range(BRANCHES)
    ]
    drawn = [result.branches[0] for result in engine.expand(asks)]
    return [
        Candidate(problem, f"r.{i}", (prompt, branch.token_ids), (branch.text,), True) for i, branch in enumerate(drawn)
    ]


def queries(engine: LocalEngine, branches: list[Candidate], rule: LayerExit | None = None) -> list[ScoreQuery]:
    question = engine.codec.next_turn(ANSWER_QUESTION)
    return [ScoreQuery(c.node_id, c.context, question, rule) for c in branches]


def test_continuation_gives_what_the_stock_model_gives_for_the_same_tokens(engine, branches):
    asked = queries(engine, branches)
    scores = engine.score(asked)
    assert [engine.score([query])[0].p_yes for query in asked] == [score.p_yes for score in scores]
    stock = load_model(SOURCE, torch.device("cpu"), torch.float32, "sdpa")
    for query, score in zip(asked[:2], scores, strict=False):
        tokens = [*flat(query.path), *engine.codec.encode(query.question)]
        with torch.inference_mode():
            logits = stock(torch.tensor([tokens]), use_cache=False).logits[0, -1]
        assert score.p_yes == pytest.approx(engine.labels.p_yes(logits), abs=1e-4)


def test_continuation_reads_at_most_6_percent_of_the_separate_prompts_tokens(engine, branches):
    """Separate prompts are counted whole, as without a prefix cache; and as they are here, the problem read once."""
    pool = Dispatcher(
        [InlineEngine("engine-0", lambda: engine)],
        InlineIndex(RSBCM()),
        engine.codec,
        engine.tree.fingerprint,
        engine.capabilities,
    )

    async def read(prompt):
        verdicts = await SelfEvaluation(pool, prompt=prompt).score(branches)
        assert [verdict.error for verdict in verdicts] == [None] * BRANCHES
        return [verdict.cost for verdict in verdicts]

    continuation, separate = (asyncio.run(read(prompt)) for prompt in ("continuation", "separate"))
    ours = sum(cost.prefilled + cost.verified for cost in continuation)
    whole = sum(cost.prefilled + cost.verified + sum(cost.reused.values()) for cost in separate)
    shared = sum(cost.prefilled + cost.verified for cost in separate)
    assert sum(cost.prefilled for cost in continuation) == 0
    assert ours <= 0.06 * whole
    assert ours < shared < whole / 3
    assert [cost.prefilled > 0 for cost in separate] == [True] + [False] * (BRANCHES - 1)


def test_layer_exit_runs_fewer_layers_and_counts_them(engine, branches):
    full = engine.score(queries(engine, branches))
    layers = engine.shape.layers
    assert {result.usage.layer_rows for result in full} == {layers}
    never = engine.score(queries(engine, branches, LayerExit("margin", float("inf"))))
    assert [result.p_yes for result in never] == [result.p_yes for result in full]
    paper = engine.score(queries(engine, branches, LayerExit("paper")))
    margin = engine.score(queries(engine, branches, LayerExit("margin", 0.0, every=1)))
    for found in (paper, margin):
        assert 0 < sum(result.usage.layer_rows for result in found) < BRANCHES * layers
        assert [result.usage.exits for result in found] == [int(r.usage.layer_rows < layers) for r in found]
        assert all(0.0 < (result.p_yes or 0.0) < 1.0 for result in found)
    assert {result.usage.layer_rows for result in paper} >= {2}
    assert all(layers // 2 < result.usage.layer_rows for result in margin)
    engine.check_integrity()
