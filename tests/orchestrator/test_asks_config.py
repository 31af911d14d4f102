"""ASKS by configuration: what is passed on, and what is refused by name."""

import pytest

pytest.importorskip("ray")

from actors.spec import EngineSpec
from engine.asks.options import Asks
from orchestrator.config import Config, UsageError


def test_options_reach_the_engine_spec():
    config = Config.create(asks={"shifted": True, "ratio": 0.5})
    assert config.spec.asks == Asks(shifted=True, ratio=0.5)
    assert Config.create().spec.asks == Asks() and not Asks().tiers


@pytest.mark.parametrize(
    ("asks", "message"),
    [
        ({"shfted": True}, "did you mean 'shifted'"),
        ({"semantic": True}, "needs tau: a number from a calibration record, or 'paper'"),
        ({"ratio": 2}, r"ratio must be in \[0, 1\], got 2"),
        ({"ratio": "much"}, "is not valid"),
    ],
)
def test_wrong_options_are_refused(asks, message):
    with pytest.raises(UsageError, match=message):
        Config.create(asks=asks)


def test_engines_without_a_model_refuse_tiers():
    with pytest.raises(ValueError, match="shifted need an engine that runs a model"):
        EngineSpec(model="simulated", asks=Asks(shifted=True)).check()
