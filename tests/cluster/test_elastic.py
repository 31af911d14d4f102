"""A cluster that grows while problems are solved, on real Ray: a new node's engine takes work, a lost one costs time."""

import threading
import time

import pytest

pytest.importorskip("ray")
pytestmark = pytest.mark.cluster

from ray.cluster_utils import Cluster

from orchestrator import Orchestrator
from tests.cluster.test_chaos import PATIENCE_S, PROBLEMS, SEARCH, STORE, Trigger, drains, nodes, options_for, told

__all__ = ["nodes"]


def test_an_elastic_pool_takes_the_nodes_that_come(nodes: Cluster) -> None:
    options = options_for("simulated", None)
    with Orchestrator(**options, runtime="inline", engines=1) as inline:
        expected = told(inline.solve_many(PROBLEMS, "tot", **SEARCH))
    with Orchestrator(**options, engines=1, elastic=True, max_engines=2) as orchestrator:
        orchestrator.start()
        coming = threading.Thread(target=nodes.add_node, kwargs={"num_cpus": 2, "object_store_memory": STORE})
        trigger = Trigger(coming.start, after_nodes=4)
        until = time.monotonic() + PATIENCE_S
        while "engine-1" not in orchestrator.pool.engines or not orchestrator.stats()["engine-1"].get("expansions"):
            assert told(orchestrator.solve_many(PROBLEMS, "tot", on_event=trigger, **SEARCH)) == expected
            assert time.monotonic() < until
        assert trigger.done
        drains(orchestrator)
        assert list(orchestrator.pool.engines) == ["engine-0", "engine-1"]
        coming.join()
        nodes.remove_node(nodes.worker_nodes.copy().pop())
        assert told(orchestrator.solve_many(PROBLEMS, "tot", **SEARCH)) == expected
