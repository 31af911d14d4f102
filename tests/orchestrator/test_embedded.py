"""The real embedded model, one end-to-end run per strategy."""

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

from engine.models import ModelNotFoundError, resolve
from orchestrator import Config, Orchestrator

try:
    resolve("embedded")
except ModelNotFoundError as missing:
    pytest.skip(str(missing), allow_module_level=True)

PROBLEM = "Tom has 3 apples and buys 4 more. How many apples does he have?"
OPTIONS = {
    "greedy": {"max_depth": 2},
    "tot": {"b": 2, "k": 2, "max_depth": 2},
    "mcts": {"simulations": 4, "k": 2, "leaves": 2, "max_depth": 3},
    "self_consistency": {"samples": 3, "wave": 3, "max_tokens": 40},
}


@pytest.fixture(scope="module")
def embedded() -> Iterator[Orchestrator]:
    with Orchestrator(model="embedded", runtime="inline", max_step_tokens=24, dtype="float32") as orchestrator:
        yield orchestrator


@pytest.mark.parametrize("strategy", sorted(OPTIONS))
def test_strategy_on_the_embedded_model(embedded: Orchestrator, strategy: str):
    result = embedded.solve(PROBLEM, strategy, seed=1, **OPTIONS[strategy])
    assert result.error is None
    assert result.text.strip()
    assert result.cost.generated > 0
    assert sum(result.cost.reused.values()) > 0
    prompt = len(result.tree.prompts[""])
    assert result.cost.prefilled <= prompt
    nodes = [node for node in result.tree.nodes() if node.parent is not None]
    assert result.cost.generated >= sum(len(node.thought.token_ids) for node in nodes)
    scores = [node.score for node in nodes if node.score is not None]
    if strategy in ("tot", "mcts"):
        assert len(scores) == len(nodes)
        assert all(0.0 < score < 1.0 for score in scores)
        assert len(set(scores)) > 1


def test_case_23_greedy_uses_the_models_own_chat_template_and_equals_uninterrupted_decoding(embedded: Orchestrator):
    from engine.base import BranchRequest, StepRule

    result = embedded.solve(PROBLEM, "greedy", max_depth=2)
    engine = embedded.pool.engines["engine-0"].actor.engine
    prompt = result.tree.prompts[""]
    assert engine.codec.decode(prompt) == engine.codec.decode(
        engine.codec.encode(engine.codec.render(embedded._prompt.messages(result.problem)))
    )
    steps = [node.thought.token_ids for node in result.tree.nodes() if node.parent is not None]
    tokens = tuple(token for step in steps for token in step)
    whole = BranchRequest("x", (prompt,), (0,), StepRule(max_tokens=len(tokens)), temperature=0.0)
    assert engine.expand([whole])[0].branches[0].token_ids == tokens


def test_case_49_the_first_run_needs_no_model_name_no_key_and_no_network():
    assert Config().model == "embedded"
    assert resolve(Config().model).path.is_file()


def test_tokens_prefilled_stay_close_to_the_distinct_tokens_of_the_tree(embedded: Orchestrator):
    result = embedded.solve("A train has 5 cars of 20 seats. How many seats?", "tot", seed=3, b=2, k=2, max_depth=3)
    distinct = len(result.tree.prompts[""]) + sum(len(n.thought.token_ids) for n in result.tree.nodes())
    assert max(node.depth for node in result.tree.nodes()) >= 2
    assert 0 < result.cost.prefilled <= 1.1 * distinct
