"""Reward models by configuration: what is refused before anything is loaded, and whole searches judged by one."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("ray")

from engine.models import resolve
from engine.reward import RewardModel
from engine.solution import RewardQuery
from orchestrator import Orchestrator, UsageError
from orchestrator.config import Config
from orchestrator.resources import gpus_needed, too_few_gpus
from search.types import Problem
from tests.tiny import save_tiny_llama, save_tiny_reward

INLINE = {"runtime": "inline", "engines": 1}


@pytest.fixture(scope="module")
def rewards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("rewards")
    folders = {"prm": save_tiny_reward(root / "prm"), "orm": save_tiny_reward(root / "orm", "sequence", 1)}
    return {**{name: str(folder) for name, folder in folders.items()}, "llama": str(save_tiny_llama(root / "llama"))}


def check_scores(result, model: RewardModel, reading: str) -> int:
    """Every score in the tree is the model's own of that node's path."""
    judged = [node for node in result.tree.nodes() if node.score is not None]
    for node in judged:
        (found,) = model.score([RewardQuery(result.problem.text, result.tree.steps(node))])
        assert node.score == pytest.approx(found.values[-1], abs=1e-4)
        assert len(found.values) == (node.depth if reading == "steps" else 1)
    return len(judged)


@pytest.mark.parametrize("engine", ["simulated", "llama"])
@pytest.mark.parametrize(("strategy", "options"), [("tot", {"b": 2, "k": 3}), ("beam", {"n": 6, "m": 2})])
def test_a_search_judged_by_a_prm(rewards, strategy, options, engine):
    model = rewards["llama"] if engine == "llama" else "simulated"
    more = {"dtype": "float32", "device": "cpu", "max_step_tokens": 12, "step_tokens": 8} if engine == "llama" else {}
    with Orchestrator(model=model, verifier="prm", reward_model=rewards["prm"], **INLINE, **more) as orchestrator:
        result = orchestrator.solve(Problem("What is 6 * 7?"), strategy, seed=1, **options)
        again = orchestrator.solve(Problem("What is 6 * 7?"), strategy, seed=1, **options)
    assert result.error is None and result.warnings == ()
    assert check_scores(result, RewardModel.load(resolve(rewards["prm"]), reading="steps", device="cpu"), "steps") > 6
    assert result.cost.verified > 0 and result.cost.seconds["verify"] > 0
    assert [n.score for n in again.tree.nodes()] == [n.score for n in result.tree.nodes()]
    assert again.cost.verified == 0, "equal content is remembered"


def test_best_of_n_judged_by_an_orm(rewards):
    with Orchestrator(model="simulated", verifier="orm", reward_model=rewards["orm"], **INLINE) as orchestrator:
        result = orchestrator.solve("What is 6 * 7?", "best_of_n", seed=1, samples=6)
        assert orchestrator.estimate("What is 6 * 7?", "best_of_n").verified is None
    assert check_scores(result, RewardModel.load(resolve(rewards["orm"]), reading="whole", device="cpu"), "whole") == 6
    best = max(result.tree.complete(), key=lambda node: node.score or 0)
    assert result.node_id == best.id


def test_a_calibration_or_a_job_names_the_reward_model(rewards):
    def name(**options) -> str:
        return Orchestrator(model="simulated", **INLINE, **options).setting.verifier

    names = [
        name(verifier="prm", reward_model=rewards["prm"]),
        name(verifier="orm", reward_model=rewards["prm"]),
        name(verifier="prm", reward_model=rewards["prm"], verifier_aggregate="min"),
        name(verifier="prm", reward_model=rewards["orm"]),
        name(verifier="prm", reward_model=rewards["prm"], step_separator="\n\n"),
    ]
    assert len(set(names)) == 5 and names[0].startswith("prm:")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"verifier": "prm"}, "verifier='prm' needs reward_model"),
        ({"reward_model": "x/y"}, "reward_model='x/y' goes with verifier='prm' or 'orm', got 'self_evaluation'"),
        ({"verifier": "orm", "reward_model": "/nowhere"}, "verifier='orm': model '/nowhere' not found"),
        ({"verifier": "prm", "reward_model": "llama"}, "LlamaForCausalLM without a reward head"),
        (
            {"verifier": "prm", "reward_model": "embedded", "reward_head": "token"},
            "does not serve as reward_head='token'",
        ),
        ({"verifier": "prm", "reward_model": "prm", "verifier_gpus": 1.5}, "verifier_gpus=1.5 is not valid"),
        ({"verifier": "prm", "reward_model": "prm", "verifier_device": "cuda"}, "'cuda' needs verifier_gpus"),
        ({"verifier": "prm", "reward_model": "prm", "verifier_aggregate": "max"}, "verifier_aggregate='max'"),
        ({"verifier": "prm", "reward_model": "prm", "step_separator": ""}, "step_separator must be at least one"),
    ],
)
def test_case_46_what_cannot_work_is_refused_before_anything_is_loaded(rewards, monkeypatch, options, message):
    monkeypatch.setattr(
        "transformers.PreTrainedModel.from_pretrained", lambda *a, **k: pytest.fail("weights were loaded")
    )
    given = {**options, "reward_model": rewards.get(options.get("reward_model", ""), options.get("reward_model", ""))}
    with pytest.raises(UsageError, match=message):
        Orchestrator(model="simulated", **INLINE, **given)


def test_case_46_gpus_that_this_machine_lacks_are_refused(rewards):
    asked = {"verifier": "prm", "reward_model": rewards["prm"], "verifier_gpus": 64}
    with (
        Orchestrator(model="simulated", **INLINE, **asked) as orchestrator,
        pytest.raises(UsageError, match=r"1 reward models with 64 each need 64 GPU, this machine has"),
    ):
        orchestrator.solve("What is 6 * 7?")


@pytest.mark.parametrize(
    ("shares", "needed"),
    [
        ([], 0), ([0.0, 0.0], 0), ([1.0, 1.0], 2), ([0.5, 0.5], 1), ([0.75, 0.5], 2), ([0.75] * 4 + [0.5], 5),
        ([2.0, 0.5], 3), ([0.5] * 3 + [0.25] * 2, 2), ([0.1] * 10, 1), ([1 / 3] * 3, 1),
    ],
)  # fmt: skip
def test_case_46_a_share_never_spans_two_gpus(shares, needed):
    assert gpus_needed(shares) == needed


def test_case_46_engines_take_what_reward_models_leave():
    from orchestrator.cluster import _auto

    assert _auto(4, 1, [0.5, 0.5], 8) == 3
    assert _auto(4, 0.5, [0.5], 8) == 7
    assert _auto(4, 0.75, [0.25], 8) == 4
    assert _auto(1, 0.5, [0.5], 8) == 1
    assert _auto(0, 0, [], 8) == 2


def test_case_46_the_message_names_both(rewards):
    config = Config.create(verifier="prm", reward_model="x/y", verifier_gpus=0.5, verifier_workers=2)
    text = too_few_gpus(config, 3, 1.0, 2, "the cluster")
    assert text.startswith("3 engines with 1 GPU each and 2 reward models with 0.5 each need 4 GPU, the cluster has 2")
