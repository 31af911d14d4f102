"""Cases of cost, visibility and sampling as a user of `Orchestrator` meets them, on simulated and real CPU engines."""

import pytest

pytest.importorskip("ray")
torch = pytest.importorskip("torch")

from engine import native
from orchestrator import Orchestrator
from search.types import Problem
from tests.tiny import save_tiny_llama

LATENCY = {"per_call_s": 0.02, "prefill_rate": 20_000, "realtime": True}
needs_kernels = pytest.mark.skipif(
    native.kernels(torch.float32) is None, reason="equal bits need the own CPU kernels: no C++ compiler"
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = save_tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")
    return {
        "model": str(folder),
        "dtype": "float32",
        "device": "cpu",
        "runtime": "inline",
        "max_step_tokens": 16,
        "step_tokens": 8,
    }


def tree_of(result) -> tuple:
    nodes = [{k: v for k, v in n.items() if k != "engine"} for n in result.tree.to_json()["nodes"]]
    return result.answer, result.text, result.stop_reason, dict(result.votes), nodes


@pytest.mark.parametrize("engine", ["simulated", "tiny"])
def test_case_30_the_library_prints_nothing_and_events_go_to_the_callback(tiny, engine, capfd):
    seen = []
    options = tiny if engine == "tiny" else {"model": "simulated", "runtime": "inline"}
    with Orchestrator(**options) as orchestrator:
        orchestrator.solve("What is 6 * 7?", "mcts", simulations=4, on_event=seen.append)
    assert capfd.readouterr().out == ""
    kinds = [event.kind for event in seen]
    assert kinds[0] == "start" and kinds[-1] == "finish" and {"node", "wave"} <= set(kinds)


def test_case_31_the_result_has_seconds_by_phase_tokens_by_tier_and_device_seconds():
    with Orchestrator(model="simulated", simulated=LATENCY, engines=2, runtime="inline") as orchestrator:
        result = orchestrator.solve("What is 6 * 7?", "mcts", seed=1, simulations=8)
    seconds = result.cost.seconds
    assert set(seconds) >= {"queue", "prefill", "decode", "verify", "total"}
    assert all(value >= 0 for value in seconds.values())
    assert 0 < seconds["decode"] < seconds["total"] and 0 < seconds["verify"] < seconds["total"]
    assert result.cost.generated > 0 and result.cost.reused["exact"] > 0
    assert sum(row["generated"] for row in result.engines.values()) == result.cost.generated
    row = result.to_json()
    assert row["device_seconds"] == pytest.approx(seconds["prefill"] + seconds["decode"] + seconds["score"], abs=1e-3)


@needs_kernels
def test_case_74_cpu_engines_give_one_tree_on_one_two_and_four_in_any_problem_order(tiny):
    """By MCTS; the other strategies on Ray, on one and two engines: `tests/cluster/test_ray.py`."""
    problems = [Problem(f"Tell me about number {i}.", id=f"p{i}") for i in range(4)]
    runs = []
    for engines, order in ((1, (0, 1, 2, 3)), (2, (3, 1, 0, 2)), (4, (2, 3, 1, 0))):
        with Orchestrator(**tiny, engines=engines, rows_per_engine=1) as orchestrator:
            results = orchestrator.solve_many([problems[i] for i in order], "mcts", seed=5, budget={"tokens": 400})
        runs.append({result.problem.id: tree_of(result) for result in results})
        used = {node.engine for result in results for node in result.tree.nodes()} - {""}
        assert len(used) >= min(engines, 2)
    assert runs[0] == runs[1] == runs[2]


@needs_kernels
def test_case_75_eight_samples_of_a_cpu_engine_are_distinct_and_the_same_next_time(tiny):
    def texts(**more):
        with Orchestrator(**tiny) as orchestrator:
            options = {"samples": 8, "stop": "none", "wave": 8, "max_tokens": 12, **more}
            result = orchestrator.solve("Say something.", "self_consistency", seed=0, **options)
        return [node.thought.text for node in result.tree.nodes()][1:]

    first = texts()
    assert len(set(first)) == len(first) == 8
    assert texts() == first == texts(wave=3)


def test_case_76_temperature_zero_on_a_cpu_engine_is_one_sample_and_a_warning(tiny):
    with Orchestrator(**tiny, temperature=0.0) as orchestrator:
        result = orchestrator.solve("Say something.", "self_consistency", samples=8, max_tokens=12)
    assert len(result.tree) - 1 <= 1 and 0 < result.cost.generated <= 12
    assert result.warnings == ("temperature 0: 8 samples would be equal, drawing one",)
