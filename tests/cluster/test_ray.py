"""The main job on real Ray: same trees everywhere, and nothing lost when a process dies."""

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytestmark = pytest.mark.cluster

from orchestrator import Orchestrator, SolveResult, UsageError
from search.strategies import registry
from search.types import Problem
from tests.tiny import save_tiny_llama

SLOW = {"step_s": 0.002, "per_call_s": 0.15, "realtime": True}
CPU = {"gpus_per_engine": 0}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_llama(tmp_path_factory.mktemp("tiny") / "llama"))


def facts(result: SolveResult) -> tuple[object, ...]:
    nodes = [{k: v for k, v in n.items() if k != "engine"} for n in result.tree.to_json()["nodes"]]
    return (result.answer, result.text, result.stop_reason, nodes)


def engines_used(result: SolveResult) -> set[str]:
    return {node.engine for node in result.tree.nodes() if node.engine}


def test_case_74_real_engine_gives_one_tree_on_one_two_engines_and_inline(cluster, tiny):
    problems = [Problem(f"Tell me about number {i}.", id=f"p{i}") for i in range(3)]
    options = {"max_step_tokens": 24, "step_tokens": 10}
    runs = []
    for where in ({"engines": 1, **CPU}, {"engines": 2, **CPU}, {"runtime": "inline"}):
        order = problems if len(runs) != 4 else problems[::-1]
        with Orchestrator(model=tiny, dtype="float32", device="cpu", **where, **options) as orchestrator:
            for strategy in ("tot", "mcts", "self_consistency", "greedy"):
                results = orchestrator.solve_many(order, strategy, seed=5, budget={"tokens": 900})
                runs.append({(strategy, r.problem.id): r for r in results})
    one, two, inline = ({key: r for run in runs[i : i + 4] for key, r in run.items()} for i in (0, 4, 8))
    for key in one:
        assert facts(one[key]) == facts(two[key]) == facts(inline[key]), key
        assert sum(two[key].cost.reused.values()) > 0
    assert set().union(*map(engines_used, two.values())) == {"engine-0", "engine-1"}


def test_a_killed_engine_comes_back_and_works_again(cluster):
    with Orchestrator(model="simulated", simulated=SLOW, engines=2, **CPU) as orchestrator:
        pids = orchestrator.start()
        os.kill(pids["engine-0"], signal.SIGKILL)
        results = [orchestrator.solve(f"Problem {i}?", "tot", seed=1) for i in range(4)]
        again = orchestrator.start()
    assert again["engine-0"] != pids["engine-0"]
    assert all(result.error is None for result in results)


def test_predicted_and_actual_hits_are_recorded_and_agree(cluster):
    with Orchestrator(model="simulated", engines=2, **CPU) as orchestrator:
        result = orchestrator.solve("What is 8 - 3?", "tot", seed=1, b=3)
    assert result.cost.actual_hit > 0
    assert result.cost.predicted_hit <= result.cost.actual_hit
    assert result.cost.predicted_hit >= 0.5 * result.cost.actual_hit


def test_an_engine_that_cannot_start_is_one_clear_error(cluster, tmp_path: Path, tiny):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in Path(tiny).iterdir():
        (broken / file.name).write_bytes(file.read_bytes() if file.suffix != ".safetensors" else b"broken")
    with Orchestrator(model=str(broken), engines=1, **CPU) as orchestrator:
        result = orchestrator.solve("Hello?", "greedy")
    assert result.stop_reason == "failed"
    assert "did not start" in (result.error or "")


def test_the_contract_of_searches_holds_on_ray(cluster):
    """As `tests/search/test_pool_contract.py`: the tree of an engine in this process, seeds, a budget that binds."""
    world, asked = {"model": "simulated", "simulated": {"depth": 5}}, "What is 17 + 25?"
    with (
        Orchestrator(**world, engines=1, runtime="inline") as inline,
        Orchestrator(**world, engines=2, **CPU) as on_ray,
    ):
        for strategy in registry.names():
            expected, other = (inline.solve(asked, strategy, seed=seed) for seed in (1, 2))
            found = on_ray.solve(asked, strategy, seed=1)
            assert facts(found) == facts(expected) and found.warnings == expected.warnings, strategy
            assert strategy == "greedy" or facts(found) != facts(other)
            if half := len(found.tree.asked) // 2:
                bound = on_ray.solve(asked, strategy, seed=1, budget={"expansions": half})
                assert (bound.stop_reason, len(bound.tree.asked)) == ("expansions", half), strategy


def test_case_46_shares_of_gpus_and_impossible_requests(cluster):
    with Orchestrator(model="simulated", engines=8, gpus_per_engine=0.5) as orchestrator:
        assert len(orchestrator.start()) == 8
    with (
        pytest.raises(UsageError, match=r"need 8 GPU, the cluster has 4"),
        Orchestrator(model="simulated", engines=8, gpus_per_engine=1) as orchestrator,
    ):
        orchestrator.solve("hi")
