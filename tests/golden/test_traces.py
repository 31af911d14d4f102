"""Case 24: a golden trace of every strategy. Each expected tree is a file beside this one."""

import pytest

from search.strategies import registry
from tests.golden.traces import FOLDER, TRACES, trace


@pytest.mark.parametrize("name", TRACES)
def test_case_24_the_whole_tree_is_as_recorded(name):
    assert trace(name) == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def test_case_24_every_strategy_has_a_trace_and_every_trace_a_strategy():
    assert {strategy for strategy, _ in TRACES.values()} == set(registry.names())
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(TRACES)
