"""How branches are verified, by configuration."""

from pathlib import Path

import pytest

pytest.importorskip("pydantic")

from engine.scripted import ScriptedEngine
from engine.simulated import SimulatedEngine
from engine.tokenizer import ByteCodec
from orchestrator import Orchestrator, UsageError
from orchestrator.config import Config
from orchestrator.prepare import NoPool
from orchestrator.render import cost_line
from orchestrator.verifiers import require_judge
from search.cgee.calibrated import Calibrated
from search.cgee.gate import Gate
from search.cgee.paper import Paper
from search.prompts import CHECK_SYSTEM, CONTENT_FREE
from search.verifiers.vote import VoteEvaluation

BUDGET = {"expansions": 2}


class Listening(ScriptedEngine):
    """Notes what it is asked to judge."""

    def __init__(self, heard: list) -> None:
        super().__init__(["Answer: 42"])
        self.heard = heard

    def score(self, queries):
        self.heard += queries
        return super().score(queries)


def heard_with(solves: int = 1, **options) -> list:
    heard: list = []
    with Orchestrator(engine=lambda: Listening(heard), runtime="inline", **options) as orchestrator:
        for i in range(solves):
            assert orchestrator.solve(f"What is {i} * 7?", budget=BUDGET, b=1, k=1).error is None
    return heard


def test_by_default_questions_continue_branches_and_are_read_in_full():
    heard = heard_with()
    assert heard
    assert {query.layer_exit for query in heard} == {None}
    assert not any(CHECK_SYSTEM.encode() in bytes(query.path[0]) for query in heard)
    assert not any(CONTENT_FREE in query.question for query in heard)


def test_every_way_of_asking_can_be_configured():
    heard = heard_with(verify_prompt="separate", verify_debias=True, layer_exit="margin", exit_threshold=1.5)
    assert all(CHECK_SYSTEM.encode() in bytes(query.path[0]) for query in heard)
    free, *asked = heard
    assert CONTENT_FREE in free.question and free.layer_exit is None
    assert {(q.layer_exit.mode, q.layer_exit.threshold) for q in asked} == {("margin", 1.5)}


@pytest.mark.parametrize("scale", ["auto", "words", "digits"])
@pytest.mark.parametrize("scores", [True, False], ids=["read", "written"])
def test_case_27_the_estimate_of_a_value_prompt_holds(scores, scale):
    def script(path, served):
        return "9 likely, and more words" if path and "Reply with" in path[-1] else f"Step {served} of it.\n\n"

    given = None if scores else frozenset({"logprobs", "confidence"})
    options = {"runtime": "inline", "verifier": "value", "value_scale": scale}
    with Orchestrator(engine=lambda: ScriptedEngine(script, capabilities=given), **options) as orchestrator:
        bound = orchestrator.estimate("What is 6 * 7?", "tot", b=2, k=2, max_depth=3)
        found = orchestrator.solve("What is 6 * 7?", "tot", b=2, k=2, max_depth=3)
    assert all(node.score is not None for node in found.tree.nodes() if node.parent) and found.warnings == ()
    assert 0 < found.cost.verified <= bound.verified
    assert found.cost.generated <= bound.generated


def test_the_prior_is_read_once_for_all_problems():
    heard = heard_with(solves=3, verify_debias=True)
    assert [CONTENT_FREE in query.question for query in heard] == [True, False, False, False]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"exit_threshold": 2.0}, "exit_threshold=2.0 goes with a layer_exit; choices: paper, margin"),
        ({"layer_exit": "paper", "exit_threshold": -1}, "exit_threshold=-1 is not valid"),
        ({"layer_exit": "entropy"}, "layer_exit='entropy' is not valid"),
        ({"verify_prompt": "fresh"}, "verify_prompt='fresh' is not valid"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(options, words):
    with pytest.raises(UsageError, match=words):
        Orchestrator(model="simulated", runtime="inline", **options)


def test_layers_saved_are_in_the_result(tmp_path: Path):
    pytest.importorskip("torch")
    from tests.tiny import save_tiny_llama

    save_tiny_llama(tmp_path / "llama", num_hidden_layers=5)
    options = {"runtime": "inline", "max_step_tokens": 8, "layer_exit": "paper", "exit_threshold": 100.0}
    with Orchestrator(model=str(tmp_path / "llama"), **options) as orchestrator:
        result = orchestrator.solve("What is 6 * 7?", budget=BUDGET, b=1, k=2)
    layers = result.to_json()["layers"]
    assert layers["exits"] > 0
    assert layers == {"exits": layers["exits"], "run": 2 * layers["exits"], "full": 5 * layers["exits"]}
    assert f"verified in {layers['run']} of {layers['full']} layers;" in cost_line(result)


@pytest.mark.parametrize("debias", [False, True])
@pytest.mark.parametrize("prompt", ["continuation", "separate"])
def test_the_estimate_knows_the_way_of_asking(prompt, debias):
    options = {"verify_prompt": prompt, "verify_debias": debias}
    with Orchestrator(engine=SimulatedEngine, runtime="inline", **options) as orchestrator:
        most = orchestrator.estimate("What is 6 * 7?", "tot", merged=True, cgee="off")
        found = orchestrator.solve("What is 6 * 7?", "tot", merged=True, cgee="off")
        plain = orchestrator.estimate("What is 6 * 7?", "greedy")
    assert (most.verified is None) == (prompt == "separate")
    assert most.verified is None or found.cost.verified <= most.verified
    assert plain.verified == 0


def test_what_a_codec_begins_chats_with_is_sent_and_counted(monkeypatch):
    """The token that a model without a chat template begins texts with, as its tokenizer knows it."""
    begin = lambda self, messages: [65] * 7 + self.encode(self.render(messages))  # noqa: E731
    with Orchestrator(model="simulated", runtime="inline") as orchestrator:
        plain = orchestrator.estimate("What is 6 * 7?", "greedy")
        monkeypatch.setattr(ByteCodec, "begin", begin, raising=False)
        assert orchestrator.estimate("What is 6 * 7?", "greedy").kv_tokens == plain.kv_tokens + 7
    assert all(bytes(query.path[0]).startswith(b"A" * 7) for query in heard_with())


def test_a_calibrated_rule_is_refused_where_the_model_votes_instead():
    config = Config.create(model="simulated")
    with pytest.raises(ValueError, match="option evaluate='vote' lets the model vote, and cgee_record is for"):
        require_judge(config, VoteEvaluation(NoPool()), Gate(Calibrated()))
    require_judge(config, None, Gate(Calibrated()))
    require_judge(config, VoteEvaluation(NoPool()), Gate(Paper()))
