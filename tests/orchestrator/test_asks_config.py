"""ASKS by configuration: what is passed on, and what is refused by name."""

import pytest

pytest.importorskip("ray")

from actors.spec import EngineSpec
from engine.asks.options import Asks
from orchestrator import Orchestrator
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


def test_a_call_names_its_tiers_and_whether_siblings_are_merged():
    with Orchestrator(model="simulated", runtime="inline") as orchestrator:
        with pytest.raises(
            UsageError, match="'shifted' is off in this engine's configuration; tiers that are on: none"
        ):
            orchestrator.solve("What is 6 * 7?", asks=["shifted"])
        with pytest.raises(UsageError, match="unknown ASKS tier 'exakt'"):
            orchestrator.solve("What is 6 * 7?", asks=["exakt"])
        assert orchestrator.solve("What is 6 * 7?", asks=[], merged=False).error is None
        searches = [orchestrator.prepare(["x"], "tot", merged=m).search.merge for m in (None, True, False)]
        counting = orchestrator.prepare(["x"], "self_consistency").search.merge
    assert (searches, counting) == ([True, True, False], False)


@pytest.mark.slow
def test_hints_before_the_problem_reuse_its_chunk_on_the_embedded_model():
    """layout off puts the hints first; the problem's KV is then moved between the prompts of one wave."""
    text = "A bakery bakes 7 trays of 12 rolls and sells 9 bags of 8 rolls. How many rolls are left in the bakery?"
    hints = ["Be careful.", "Work backwards from the question."]
    with Orchestrator(runtime="inline", layout=False, asks={"shifted": True}, max_step_tokens=8) as orchestrator:
        on, off = (
            orchestrator.solve(text, "tot", k=2, max_depth=1, hints=hints, asks=asks).cost.reused for asks in (None, [])
        )
        stats = next(iter(orchestrator.stats().values()))
    assert on["shifted"] > 64 and "shifted" not in off
    assert stats["shifted_chunks"] == 1
