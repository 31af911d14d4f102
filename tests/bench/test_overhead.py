"""The benchmark of the controller's cost: that it measures every strategy, and waits as long as it says."""

import pytest

pytest.importorskip("torch")

from bench import overhead
from search.strategies import registry


def test_every_strategy_is_measured():
    assert {name for name, _, _ in overhead.cases(1000).values()} == set(registry.names())


def test_the_pools_own_time_is_taken_off():
    name, world, options = overhead.cases(200)["beam"]
    found = overhead.per_node(name, world, options, 200)
    assert found["nodes"] == 200
    assert found["ms_per_node"] > 0


@pytest.mark.parametrize("case", overhead.WAITING, ids=lambda case: case.name)
def test_no_search_is_faster_than_its_ideal(case):
    found = overhead.waited(case, 1)
    assert found["best"] >= 1.0 and found["ideal_s"] == case.calls * overhead.CALL_S
