"""A cluster that grows and shrinks while problems are solved, on real Ray: a new node's engine works, a lost one costs
time, and one that is said to leave is left before."""

import threading
import time

import pytest

pytest.importorskip("ray")
pytestmark = pytest.mark.cluster

from ray.cluster_utils import Cluster
from typer.testing import CliRunner

from orchestrator import Orchestrator
from orchestrator.cli import app
from tests.cluster.test_chaos import PATIENCE_S, PROBLEMS, SEARCH, STORE, Trigger, drains, nodes, options_for, told

__all__ = ["nodes"]


def test_an_elastic_pool_takes_the_nodes_that_come(nodes: Cluster) -> None:
    options = options_for("simulated", None)
    with Orchestrator(**options, runtime="inline", engines=1) as inline:
        expected = told(inline.solve_many(PROBLEMS, "tot", **SEARCH))
    with Orchestrator(**options, engines=1, elastic=True, max_engines=2) as orchestrator:
        orchestrator.start()
        under_way, found = threading.Event(), []
        trigger = Trigger(under_way.set, after_nodes=4)

        def search() -> None:
            while len(found) < 30 and not orchestrator.stats().get("engine-1", {}).get("expansions"):
                found.append(told(orchestrator.solve_many(PROBLEMS, "tot", on_event=trigger, **SEARCH)))

        searching = threading.Thread(target=search)
        searching.start()
        assert under_way.wait(PATIENCE_S)
        nodes.add_node(num_cpus=2, object_store_memory=STORE)
        searching.join()
        assert found == [expected] * len(found)
        assert orchestrator.stats()["engine-1"]["expansions"] > 0
        drains(orchestrator)
        assert list(orchestrator.pool.engines) == ["engine-0", "engine-1"]
        nodes.remove_node(nodes.worker_nodes.copy().pop())
        assert told(orchestrator.solve_many(PROBLEMS, "tot", **SEARCH)) == expected


def test_engines_leave_a_node_that_is_said_to_go_and_nothing_is_lost(nodes: Cluster) -> None:
    options = options_for("simulated", None)
    with Orchestrator(**options, runtime="inline", engines=1) as inline:
        expected = told(inline.solve_many(PROBLEMS, "tot", **SEARCH))
    node = nodes.add_node(num_cpus=1, object_store_memory=STORE)
    with Orchestrator(**options, engines=2) as orchestrator:
        orchestrator.start()
        under_way, found, failures = threading.Event(), [], []
        trigger = Trigger(under_way.set, after_nodes=4)
        there = [name for name, row in orchestrator.stats().items() if row.get("node_id") == node.node_id]
        orchestrator.pool.fleet.on_failure = lambda who, why: failures.append((who, why))

        def search() -> None:
            until = time.monotonic() + PATIENCE_S
            while time.monotonic() < until and (len(orchestrator.pool.engines) > 1 or not found):
                found.append(told(orchestrator.solve_many(PROBLEMS, "tot", on_event=trigger, **SEARCH)))

        searching = threading.Thread(target=search)
        searching.start()
        assert under_way.wait(PATIENCE_S)
        wrong = CliRunner().invoke(app, ["drain", "nowhere"])
        assert wrong.exit_code == 2
        said = CliRunner().invoke(app, ["drain", node.node_id, "--seconds", "20"])
        assert said.exit_code == 0 and "told" in said.output
        searching.join()
        assert found == [expected] * len(found)
        assert not failures and len(there) == 1 and there[0] not in orchestrator.pool.engines
        nodes.remove_node(node)
        assert told(orchestrator.solve_many(PROBLEMS, "tot", **SEARCH)) == expected
        drains(orchestrator)
