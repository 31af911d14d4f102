"""The simulation: its clock and devices by hand, its searches against each other, its traces."""

import asyncio
import json
from pathlib import Path

import pytest

from bench.scale.clock import StuckError, run_virtually
from bench.scale.device import Device, Speeds, Work
from bench.scale.regimes import Regime, grown
from bench.scale.simulate import Hardware, search_trees, serve_trace
from bench.scale.trace import TraceError, read_trace

SMALL = Regime("small", trees=6, b=2, k=2, prompt=200, step=20)
SLOW = Speeds(prefill_rate=100.0, step_s=1.0, row_s=0.5, max_rows=3, rpc_s=0.0)


def ends(*arrivals: tuple[float, int, list[int]]) -> list[tuple[float, float, float]]:
    """(end, prefill seconds, decode seconds) of works that arrive at these times."""

    async def run() -> list[tuple[float, float, float]]:
        loop = asyncio.get_running_loop()
        device = Device(loop, SLOW)
        found: dict[int, tuple[float, float, float]] = {}
        for i, (at_s, prefill, lengths) in enumerate(arrivals):

            def done(p: float, d: float, i: int = i) -> None:
                found[i] = (loop.time(), p, d)

            loop.call_at(at_s, device.submit, Work(prefill, lengths, done))
        await asyncio.sleep(1000)
        return [found[i] for i in range(len(arrivals))]

    return run_virtually(run())


def test_virtual_time_jumps_to_the_next_timer():
    async def run() -> list[float]:
        loop = asyncio.get_running_loop()
        seen = []
        for wait in (3600.0, 0.25):
            await asyncio.sleep(wait)
            seen.append(loop.time())
        return seen

    assert run_virtually(run()) == pytest.approx([3600.0, 3600.25])


def test_a_task_that_waits_for_ever_is_an_error_not_a_hang():
    async def run() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(StuckError):
        run_virtually(run())


def test_rows_of_one_work_share_steps():
    assert ends((0.0, 200, [4, 2])) == [pytest.approx((2.0 + 2 * 2.0 + 2 * 1.5, 2.0, 7.0))]


def test_a_prefill_waits_for_the_step_under_way_and_holds_up_the_rows():
    first, second = ends((0.0, 0, [4]), (2.0, 100, [1]))
    assert second == pytest.approx((3.0 + 1.0 + 2.0, 1.0, 1.0))
    assert first == pytest.approx((6.0 + 1.5, 0.0, 3.0 + 1.0 + 1.5))


def test_more_rows_than_fit_wait():
    first, second = ends((0.0, 0, [2, 2]), (0.0, 0, [1, 1]))
    assert first == pytest.approx((4.0, 0.0, 4.0))
    assert second == pytest.approx((6.0, 0.0, 2.0))


@pytest.mark.parametrize("policy", ["rsbcm"])
def test_the_same_seed_gives_the_same_run(policy: str):
    hardware = Hardware(engines=3)
    a, b = (search_trees(SMALL, policy, hardware, seed=3) for _ in range(2))
    assert (a.makespan_s, a.prefilled, a.answers) == (b.makespan_s, b.prefilled, b.answers)
    assert 0 < a.hit_rate <= 1
    assert 0 < a.busy <= 1


def test_trees_depend_neither_on_engines_nor_on_failures():
    calm = search_trees(SMALL, "rsbcm", Hardware(engines=1), seed=3)
    wide = search_trees(SMALL, "rsbcm", Hardware(engines=4), seed=3)
    failing = Hardware(engines=4, failures=((0.4, 0), (0.9, 1), (1.4, 2)), down_s=0.5)
    hurt = search_trees(SMALL, "rsbcm", failing, seed=3)
    assert calm.answers == wide.answers == hurt.answers
    assert calm.expansions == wide.expansions == hurt.expansions
    assert wide.makespan_s < calm.makespan_s
    assert hurt.makespan_s > wide.makespan_s


def test_one_engine_reuses_everything_but_the_prompts():
    run = search_trees(SMALL, "rsbcm", Hardware(engines=1), seed=0)
    assert run.hit_rate == run.hit_rate_all == 1.0
    assert run.prefilled == 6 * 199


def test_load_grows_with_engines():
    assert grown(Regime("R", trees=256, in_flight=96), 128) == Regime("R", trees=512, in_flight=192)
    assert grown(Regime("R", trees=16), 64).trees == 16


def row(**other: object) -> str:
    base = {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]}
    return json.dumps({**base, **other}) + "\n"


def test_a_trace_is_replayed_with_reuse_of_its_blocks(tmp_path: Path):
    path = tmp_path / "trace.jsonl"
    path.write_text(row() + row(timestamp=60_000) + row(timestamp=90_000, hash_ids=[1, 3]))
    run = serve_trace(read_trace(path), "rsbcm", Hardware(engines=1), seed=0)
    assert run.makespan_s > 90
    assert run.prefilled == 699 + 0 + (699 - 512)


def test_a_row_waits_for_its_parent(tmp_path: Path):
    path = tmp_path / "trace.jsonl"
    parent = row(id="p", output_length=1000)
    child = row(id="c", parent="p", input_length=3, hash_ids=[9], block_tokens=4, score=0.5, output_length=2)
    path.write_text(child + parent)
    run = serve_trace(read_trace(path), "rsbcm", Hardware(engines=2), seed=0)
    alone = serve_trace([r for r in read_trace(path) if r.id == "p"], "rsbcm", Hardware(engines=2), seed=0)
    assert run.makespan_s > alone.makespan_s > 15


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nonsense\n", "line 1"),
        (row(hash_ids=[1]), "700 tokens are not 1 blocks of 512"),
        (row(input_length=0), "input_length"),
        (row(output_length=1 << 30), "output_length"),
        (row(parent="lost"), "lost"),
        ("[]\n", "line 1"),
    ],
)
def test_lines_that_are_no_requests_are_named(tmp_path: Path, line: str, said: str):
    path = tmp_path / "trace.jsonl"
    path.write_text(line)
    with pytest.raises(TraceError, match=said):
        read_trace(path)


def test_a_recorded_search_is_replayed_with_its_own_reuse(tmp_path: Path):
    from orchestrator import Orchestrator
    from orchestrator.batch.folder import runs_of
    from orchestrator.report.export import export

    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"id": i, "question": f"What is {i} + {i}?"}) + "\n" for i in range(3)))
    with Orchestrator(model="simulated", runtime="inline", engines=1) as orchestrator:
        orchestrator.run_batch(rows, tmp_path / "out", "tot", b=2, k=2)
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(map(str, export(runs_of(tmp_path / "out")[0], "requests"))))
    requests = read_trace(trace)
    assert any(request.parent for request in requests)
    assert any(request.score is not None for request in requests)
    run = serve_trace(requests, "rsbcm", Hardware(engines=1), seed=0)
    prompts = {request.path[0] for request in requests}
    assert len(prompts) == 3
    assert run.prefilled == sum(len(prompt) - 1 for prompt in prompts)
