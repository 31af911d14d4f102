"""The index on real Ray: idle engines give a new one all they hold, and what is released drains to nothing."""

import os
import signal
import time
from collections.abc import Callable

import pytest

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.cluster

from actors.remote import RayEngine, RayIndex, start_engine, start_index
from actors.spec import EngineSpec
from engine.base import path_keys
from search.types import Expansion, Sampling


def order(number: int) -> Expansion:
    prompt = tuple(f"Problem {number}: what is {number} + 1?".encode())
    return Expansion(f"o{number}", f"p{number}", "r", (prompt,), 2, Sampling())


def eventually(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.2)


def counts(index: RayIndex) -> tuple[int, int]:
    """Live holders and entries; the books balance. An index that is just starting has none."""
    try:
        ray.get(index.actor.check_integrity.remote(), timeout=60)
        stats = ray.get(index.actor.stats.remote(), timeout=60)
    except ray.exceptions.RayError:
        return (0, 0)
    return (stats["live"], stats["entries"])


@pytest.fixture
def fleet(cluster):
    index = start_index()
    engines = [start_engine(f"engine-{i}", EngineSpec(model="simulated"), index, 0.1, 0.0) for i in range(2)]
    yield index, engines
    for handle in (*engines, index):
        handle.kill()


def hold(engine: RayEngine, numbers: range) -> None:
    outcomes = ray.get(engine.actor.expand.remote([order(n) for n in numbers], f"{engine.name}"), timeout=120)
    assert all(outcome.error is None for outcome in outcomes)


def test_idle_engines_rebuild_a_killed_index_and_a_dead_engine_expires(fleet):
    index, engines = fleet
    hold(engines[0], range(5))
    hold(engines[1], range(3, 9))
    eventually(lambda: counts(index)[0] == 2 and counts(index)[1] > 22)
    before = counts(index)
    ray.kill(index.actor, no_restart=False)
    eventually(lambda: counts(index) == before)
    os.kill(ray.get(engines[0].actor.ping.remote()), signal.SIGSTOP)
    eventually(lambda: counts(index)[0] == 1)


def test_what_is_released_drains_from_the_index(fleet):
    index, engines = fleet
    hold(engines[0], range(5))
    eventually(lambda: counts(index)[1] > 0)
    keys = [path_keys("simulated", order(n).context)[0] for n in range(5)]
    ray.get(engines[0].actor.release.remote(keys), timeout=120)
    eventually(lambda: counts(index)[1] <= 1)  # what all the prompts begin with
