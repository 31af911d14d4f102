"""Processes killed, stopped and lost with their machines: the same answers and trees, and nothing is left over."""

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.cluster

from ray.cluster_utils import Cluster

from actors.handles import EngineDownError
from actors.messages import Reply
from actors.remote import start_engine
from actors.rsbcm import RSBCM
from orchestrator import Orchestrator, SolveResult
from search.types import Event, Problem, ScoreRequest
from tests.cluster.test_ray import facts
from tests.tiny import save_tiny_llama

PROBLEMS = [Problem(f"What is {number} + 25?", id=f"p{number}") for number in (17, 4, 31)]
SEARCH: dict[str, Any] = {"seed": 2, "b": 3, "k": 4, "max_depth": 5}
STORE = 100 << 20
DETECT = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 10}
SLOW = {"step_s": 0.002, "per_call_s": 0.15, "realtime": True, "depth": 5}
PATIENCE_S = 120.0
TIMERS: list[threading.Timer] = []


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    """A head with one CPU that this process is connected to; engines take a CPU each, so one fits on it."""
    head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False, "_system_config": DETECT}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def options_for(model: str, folder: Any) -> dict[str, Any]:
    options = {"gpus_per_engine": 0, "call_timeout_s": 5.0, "attempts": 6, "concurrency": 3}
    if model == "simulated":
        return {**options, "model": "simulated", "simulated": SLOW}
    tiny = str(save_tiny_llama(folder / "llama"))
    return {**options, "model": tiny, "dtype": "float32", "device": "cpu", "max_step_tokens": 16, "step_tokens": 8}


@dataclass
class Rig:
    """Two engines on two nodes, and what an undisturbed run finds."""

    orchestrator: Orchestrator
    expected: list[tuple[object, ...]]
    cluster: Cluster
    options: dict[str, Any]

    def on_loop(self, work: Any) -> Any:
        return self.orchestrator._loop.run(work)


def told(results: list[SolveResult]) -> list[tuple[object, ...]]:
    """Answers, nodes, and the expansions that were told to the strategies."""
    assert [result.error for result in results] == [None] * len(results)
    return [(*facts(result), sorted(result.tree.asked)) for result in results]


@pytest.fixture(scope="module", params=["simulated", "tiny"])
def rig(request: pytest.FixtureRequest, nodes: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    options = options_for(request.param, tmp_path_factory.mktemp("model"))
    with Orchestrator(**options, runtime="inline", engines=1) as inline:
        expected = told(inline.solve_many(PROBLEMS, "tot", **SEARCH))
    nodes.add_node(num_cpus=1, object_store_memory=STORE)
    with Orchestrator(**options, engines=2) as orchestrator:
        orchestrator.start()
        yield Rig(orchestrator, expected, nodes, options)
    for node in list(nodes.worker_nodes):
        nodes.remove_node(node)


class Trigger:
    """Calls `act` once, when the searches have grown some nodes."""

    def __init__(self, act: Callable[[], object], after_nodes: int = 12) -> None:
        self.act, self.left, self.done = act, after_nodes, False

    def __call__(self, event: Event) -> None:
        self.left -= event.kind == "node"
        if self.left <= 0 and not self.done:
            self.done = True
            self.act()


def later(act: Callable[[], object]) -> Callable[[], None]:
    """In the middle of the next calls, and off the loop; `solves` waits until it has happened."""

    def begin() -> None:
        timer = threading.Timer(0.05, act)
        TIMERS.append(timer)
        timer.start()

    return begin


def survives(rig: Rig, act: Callable[[], object], after_nodes: int = 12) -> None:
    solves(rig, act, after_nodes)
    drains(rig.orchestrator)


def solves(rig: Rig, act: Callable[[], object], after_nodes: int = 12) -> None:
    trigger = Trigger(act, after_nodes)
    found = rig.orchestrator.solve_many(PROBLEMS, "tot", on_event=trigger, **SEARCH)
    assert trigger.done
    while TIMERS:  # short searches may be over before it
        TIMERS.pop().join(PATIENCE_S)
    assert told(found) == rig.expected


def drains(orchestrator: Orchestrator) -> None:
    """Books balance; pins, trees and entries of finished problems go, but for the stem that all prompts share."""
    pool = orchestrator.pool

    async def left() -> tuple[dict[str, int], int]:
        pool.check_integrity()
        assert all(not load.rows and not load.prefill_tokens and not load.calls for load in pool.fleet.loads.values())
        stats = await pool.index.stats()
        return {key: stats[key] for key in ("pins", "trees", "scored")}, stats["entries"]

    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            claims, entries = orchestrator._loop.run(left())
            if not any(claims.values()) and entries <= len(pool.engines):
                break
        except Exception as error:
            claims, entries = {repr(error): 1}, -1
        assert time.monotonic() < until, (claims, entries)
        time.sleep(0.3)
    if isinstance(rsbcm := getattr(pool.index, "rsbcm", None), RSBCM):
        rsbcm.check_integrity()
    else:
        ray.get(pool.index.actor.check_integrity.remote(), timeout=PATIENCE_S)


def is_up(rig: Rig, name: str) -> None:
    """Wait until it is given work again: its process may answer a moment before."""
    until = time.monotonic() + PATIENCE_S
    while not rig.orchestrator.pool.fleet.is_up(name):
        assert time.monotonic() < until, rig.orchestrator.failures
        time.sleep(0.1)


def ask(rig: Rig, name: str) -> None:
    """Give this engine a question: placement may leave it without work, and what has none is not found out."""
    pool = rig.orchestrator.pool
    context = (pool.encode([{"role": "user", "content": "Are you there?"}]),)

    async def asked() -> str | None:
        (score,) = await pool.score([ScoreRequest("probe", context, pool.question("Is it right?"), name)])
        await pool.release([context])
        return score.error

    assert rig.on_loop(asked()) is None


def noticed(rig: Rig, found: Callable[[], bool]) -> None:
    """Search until it is; an engine that had no work when it was hit is found out when it gets some."""
    until = time.monotonic() + PATIENCE_S
    while not found():
        assert time.monotonic() < until
        solves(rig, lambda: None)
    drains(rig.orchestrator)


def test_case_68_an_engine_is_killed(rig: Rig) -> None:
    before = rig.orchestrator.start()
    survives(rig, later(lambda: os.kill(before["engine-1"], signal.SIGKILL)))
    after = rig.orchestrator.start()
    assert after["engine-0"] == before["engine-0"] and after["engine-1"] != before["engine-1"]


def test_an_engine_is_stopped_found_silent_killed_and_replaced(rig: Rig) -> None:
    before, fleet = rig.orchestrator.start(), rig.orchestrator.pool.fleet
    is_up(rig, "engine-1")
    downs = fleet.life("engine-1")
    solves(rig, later(lambda: os.kill(before["engine-1"], signal.SIGSTOP)))
    ask(rig, "engine-1")
    noticed(rig, lambda: fleet.life("engine-1") > downs)
    after = rig.orchestrator.start()
    assert after["engine-0"] == before["engine-0"] and after["engine-1"] != before["engine-1"]
    assert any("no answer" in reason for _, reason in rig.orchestrator.failures)
    with pytest.raises(ProcessLookupError):
        os.kill(before["engine-1"], 0)


def test_the_index_is_killed(rig: Rig) -> None:
    survives(rig, later(lambda: ray.kill(rig.orchestrator.pool.index.actor, no_restart=False)))


def test_two_engines_join(rig: Rig) -> None:
    pool, spec = rig.orchestrator.pool, rig.orchestrator.spec
    extra = [start_engine(f"extra-{i}", spec, pool.index, 0.0, 0.0) for i in range(2)]

    async def ready() -> None:
        await asyncio.gather(*(engine.ready() for engine in extra))

    rig.on_loop(ready())
    try:
        survives(rig, lambda: [pool.add(engine) for engine in extra], after_nodes=4)
        stats = rig.orchestrator.stats()
        assert sum(stats[engine.name]["expansions"] for engine in extra) > 0
    finally:
        for engine in extra:
            rig.on_loop(pool.remove(engine.name))
            engine.kill()
    drains(rig.orchestrator)


def test_a_node_is_removed(rig: Rig) -> None:
    """What ran there waits for a place; once a node comes, Ray starts it again."""
    here = ray.get_runtime_context().get_node_id()
    stats = rig.orchestrator.stats()
    gone = [name for name, row in stats.items() if row["node_id"] != here]
    assert len(gone) == 1
    (second,) = rig.cluster.worker_nodes
    assert stats[gone[0]]["node_id"] == second.node_id
    removing = threading.Thread(target=rig.cluster.remove_node, args=(second,), kwargs={"allow_graceful": False})
    solves(rig, removing.start)
    removing.join(PATIENCE_S)
    assert second not in rig.cluster.worker_nodes
    ask(rig, gone[0])
    noticed(rig, lambda: not rig.orchestrator.pool.fleet.is_up(gone[0]))
    rig.cluster.add_node(num_cpus=1, object_store_memory=STORE)
    rig.orchestrator.start()
    noticed(rig, lambda: rig.orchestrator.stats()[gone[0]].get("expansions", 0) > 0)


class Losing:
    """An engine whose answers are lost, one call in `one_in`: what it grew and judged is there, and nobody knows."""

    def __init__(self, engine: Any, seed: int, one_in: int) -> None:
        self._engine, self._random, self._one_in = engine, random.Random(seed), one_in
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def expand(self, orders: Any, token: str) -> Any:
        return self._perhaps(await self._engine.expand(orders, token))

    async def score(self, requests: Any) -> Any:
        return self._perhaps(await self._engine.score(requests))

    def _perhaps(self, found: Any) -> Any:
        if self._random.randrange(self._one_in) == 0:
            self.lost += 1
            raise EngineDownError("the reply was lost")
        return found


def lose_replies(orchestrator: Orchestrator, seed: int, one_in: int = 5) -> list[Losing]:
    engines = orchestrator.pool.fleet.engines
    losing = [Losing(engine, seed + number, one_in) for number, engine in enumerate(list(engines.values()))]
    engines.update((engine.name, engine) for engine in losing)
    return losing


def lossy_index(share: float, seed: int) -> type[RSBCM]:
    """An index whose batches are dropped, taken twice and taken late, `share` of them each."""

    class Lossy(RSBCM):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.random, self.late, self.faults = random.Random(seed), [], {"lost": 0, "twice": 0, "late": 0}

        def apply(self, data: bytes) -> Reply:
            while self.late and self.random.random() < 0.5:
                super().apply(self.late.pop(self.random.randrange(len(self.late))))
            draw = self.random.random()
            if draw < share:
                self.faults["lost"] += 1
                return Reply("ok")
            if draw < 2 * share:
                self.faults["twice"] += 1
                super().apply(data)
            elif draw < 3 * share:
                self.faults["late"] += 1
                self.late.append(data)
                raise ConnectionError("no answer")
            return super().apply(data)

        def stats(self) -> dict[str, Any]:
            return {**super().stats(), **self.faults}

    return Lossy


def test_replies_are_lost(rig: Rig) -> None:
    engines = rig.orchestrator.pool.fleet.engines
    sound = dict(engines)
    losing = lose_replies(rig.orchestrator, seed=1)
    try:
        survives(rig, lambda: None)
    finally:
        engines.update(sound)
    assert sum(engine.lost for engine in losing) > 0


def test_events_are_dropped_doubled_and_late(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the way from engine actors to the index actor; engines of their own, on a node of their own."""
    monkeypatch.setattr("actors.remote.RSBCM", lossy_index(0.1, seed=3))
    node = rig.cluster.add_node(num_cpus=2, object_store_memory=STORE)
    try:
        with Orchestrator(**rig.options, engines=2) as orchestrator:
            faults = dict.fromkeys(("lost", "twice", "late"), 0)
            until = time.monotonic() + PATIENCE_S
            while not all(faults.values()):
                assert time.monotonic() < until, faults
                assert told(orchestrator.solve_many(PROBLEMS, "tot", **SEARCH)) == rig.expected
                drains(orchestrator)
                stats = ray.get(orchestrator.pool.index.actor.stats.remote(), timeout=PATIENCE_S)
                faults = {fault: stats[fault] for fault in faults}
    finally:
        rig.cluster.remove_node(node)


@pytest.mark.slow
@pytest.mark.parametrize("rig", ["simulated"], indirect=True)
@pytest.mark.parametrize("seed", range(3))
def test_rounds_of_random_trouble_lose_no_expansion(rig: Rig, seed: int) -> None:
    """Each round one trouble after the other, while three problems are solved."""
    draw = random.Random(seed)
    pool = rig.orchestrator.pool

    def kill(how: signal.Signals) -> None:
        os.kill(pids[draw.choice(sorted(pids))], how)

    troubles = [
        lambda: kill(signal.SIGKILL),
        lambda: kill(signal.SIGSTOP),
        lambda: ray.kill(pool.index.actor, no_restart=False),
    ]
    pids = rig.orchestrator.start()
    chosen = draw.sample(troubles, 2)

    def act() -> None:
        later(chosen[0])()
        threading.Timer(draw.uniform(0.2, 1.5), chosen[1]).start()

    survives(rig, act, after_nodes=draw.randint(2, 20))
    rig.orchestrator.start()
