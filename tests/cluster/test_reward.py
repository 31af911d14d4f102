"""Reward models on Ray: resources of their own beside the policy's, and nothing lost when one dies or hangs."""

import asyncio
import os
import signal
import time

import pytest

pytest.importorskip("ray")
pytestmark = pytest.mark.cluster

import ray

from actors.remote import start_reward
from actors.reward import RewardSpec
from actors.reward_verifier import RewardVerifier
from engine.scripted import ScriptedEngine
from engine.solution import Rewards
from orchestrator import Orchestrator, UsageError
from search.answers import equivalent
from search.ports import Candidate
from search.types import Problem
from search.verifiers.ensemble import Ensemble
from tests.search.conftest import Lab
from tests.tiny import save_tiny_reward

POLICY = {"model": "simulated"}


@pytest.fixture(scope="module")
def prm(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_reward(tmp_path_factory.mktemp("reward") / "prm"))


def free_gpus(expected: float) -> float:
    """What is left, once Ray's books have settled."""
    for _ in range(300):
        if abs(ray.available_resources().get("GPU", 0.0) - expected) < 1e-6:
            break
        time.sleep(0.1)
    return ray.available_resources().get("GPU", 0.0)


@pytest.mark.parametrize(("engines", "each", "reward", "left"), [(2, 1, 1, 1), (1, 0.5, 0.5, 3)])
def test_case_46_policy_and_reward_model_on_gpus_of_their_own_or_shared(cluster, prm, engines, each, reward, left):
    """Fake GPUs: what Ray hands out is real, what runs on them is not."""
    given = {"verifier": "prm", "reward_model": prm, "verifier_gpus": reward, "gpus_per_engine": each}
    with Orchestrator(**POLICY, engines=engines, **given) as orchestrator:
        result = orchestrator.solve("What is 6 * 7?", "beam", seed=1, n=4, m=2)
        assert free_gpus(left) == pytest.approx(left)
        pids = set(orchestrator.start().values())
    judged = [node.score for node in result.tree.nodes() if node.parent is not None]
    assert judged and None not in judged and result.warnings == ()
    assert len(pids) == engines
    with Orchestrator(**POLICY, runtime="inline", engines=1, verifier="prm", reward_model=prm) as orchestrator:
        inline = orchestrator.solve("What is 6 * 7?", "beam", seed=1, n=4, m=2)
    assert [node.score for node in inline.tree.nodes()] == [node.score for node in result.tree.nodes()]


@pytest.mark.parametrize(
    ("engines", "each", "reward", "need"), [(4, 1, 1, 5), (4, 1, 0.5, 5), (4, 0.75, 0.5, 5), (1, 1, 4, 5)]
)
def test_case_46_an_impossible_request_is_an_error_before_any_model_is_loaded(
    cluster, tmp_path, engines, each, reward, need
):
    """The weights are not even there."""
    folder = save_tiny_reward(tmp_path / "prm")
    (folder / "model.safetensors").unlink()
    given = {"verifier": "prm", "reward_model": str(folder), "verifier_gpus": reward, "gpus_per_engine": each}
    with (
        Orchestrator(**POLICY, engines=engines, **given) as orchestrator,
        pytest.raises(UsageError, match=rf"need {need} GPU, the cluster has 4; use fewer engines"),
    ):
        orchestrator.solve("What is 6 * 7?")


class Faulty:
    """Dies by a segmentation fault, or never returns, each time it is asked."""

    def __init__(self, how: str) -> None:
        self.how = how

    def score(self, queries):
        if self.how == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.how == "hang":
            time.sleep(10_000)
        return [Rewards((0.9 if "42" in "".join(q.steps) else 0.1,)) for q in queries]

    def stats(self):
        return {}


def faulty(how: str, timeout_s: float) -> RewardVerifier:
    spec = RewardSpec(how, "whole", factory=lambda: Faulty(how))
    return RewardVerifier(spec, timeout_s=timeout_s, handles=[start_reward(how, spec, 0, 0)])


def test_a_reward_model_that_segfaults_or_hangs_costs_its_own_scores_only(cluster):
    """Acceptance: the search ends with the right answer from the rest, and says what happened."""
    members = (faulty("segfault", 120), faulty("hang", 3), faulty("none", 120))
    found = Lab(ScriptedEngine(["Answer: 41", "Answer: 42", "Answer: 43"])).solve(
        "best_of_n", Problem("What is 6 * 7?", reference="42"), verifier=Ensemble(members), options={"samples": 3}
    )
    for member in members:
        member.handles[0].kill()
    assert (found.answer, found.correct, found.error) == ("42", True, None)
    (warning,) = found.warnings
    assert "segfault died" in warning and "hang did not answer within 3 s and was started anew" in warning


def test_a_killed_reward_model_comes_back(cluster):
    verifier = faulty("none", 120)
    handle = verifier.handles[0]

    async def two():
        path = Candidate(Problem("What is 6 * 7?"), "r.0", ((1,),), ("a\n\n", "42"), True)
        before, pid = await verifier.score([path]), await handle.ready()
        os.kill(pid, signal.SIGKILL)
        return before, await verifier.score([path]), pid, await handle.ready()

    before, after, pid, again = asyncio.run(two())
    handle.kill()
    assert before[0].error is None and after[0].error is None
    assert before[0].score == after[0].score == 0.9 and pid != again


def test_case_43_the_checker_in_eight_threads_of_a_ray_actor(cluster):
    class Checker:
        def check(self, a: str, b: str) -> bool:
            return equivalent(a, b)

    actor = ray.remote(Checker).options(num_cpus=0, max_concurrency=8).remote()
    tower = "10^{10^{10}}"
    pairs = [(r"\frac{\sqrt2}{2}", r"\frac{1}{\sqrt{2}}", True), (tower, "5", False), ("(x+1)^2", "x^2+2x+1", True)]
    asked = [(actor.check.remote(a, b), same) for a, b, same in pairs * 8]
    assert [ray.get(ref, timeout=300) for ref, _ in asked] == [same for _, same in asked]
    ray.kill(actor)
