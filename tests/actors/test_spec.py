"""EngineSpec and Config: the eviction policy is checked before anything is loaded, and reaches the engine."""

import pytest

from actors.rates import EngineLoad
from actors.spec import EngineSpec
from orchestrator.config import Config, UsageError


@pytest.mark.parametrize("name", ["lru", "omega", "value"])
def test_the_eviction_policy_reaches_the_engine(name):
    engine = Config.create(model="simulated", eviction=name, kv_budget_bytes=4096).spec.build()
    assert engine.tree.policy.name == name
    assert engine.tree.budget_bytes == 4096


def test_an_unknown_eviction_policy_names_the_choices():
    with pytest.raises(ValueError, match="choices: lru, omega, value"):
        EngineSpec(model="simulated", eviction="fifo")
    with pytest.raises(UsageError, match=r"eviction='fifo'.*'lru', 'omega' or 'value'"):
        Config.create(eviction="fifo")


@pytest.mark.parametrize("rows", [1, 8, 64])
def test_an_actor_bears_as_many_calls_as_its_engine_is_given_rows(rows):
    spec = EngineSpec(max_rows=rows)
    assert spec.concurrent and spec.calls == EngineLoad().room(rows, concurrent=True)
    assert EngineSpec(max_rows=4096).calls == 256
