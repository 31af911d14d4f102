"""With every tier off the engine is the plain engine, bit for bit in float32."""

import pytest

torch = pytest.importorskip("torch")

from engine.asks.options import Asks
from engine.base import ScoreQuery
from tests.engine.asks.conftest import BODY

HINTS = ("Be quick. ", "Think it over slowly, twice. ", "")


def outputs(lab, engine, tiers):
    """Everything an engine returns on prompts that the tiers would serve, deeper branches and scores included."""
    first = engine.expand([lab.ask(hint + BODY, n=3, tiers=tiers) for hint in HINTS])
    paths = [(*lab.path(hint + BODY), r.branches[0].token_ids) for hint, r in zip(HINTS, first, strict=True)]
    texts = engine.score([ScoreQuery(str(i), path, " Right?", tiers=tiers) for i, path in enumerate(paths)])
    again = [engine.expand([lab.ask(hint + BODY, n=2, tiers=tiers)])[0] for hint in HINTS]
    return [r.branches for r in (*first, *again)], [score.p_yes for score in texts]


def test_default_options_are_the_plain_engine(lab):
    plain, off = lab.engine(), lab.engine(Asks())
    assert outputs(lab, off, None) == outputs(lab, plain, None)
    assert not any(key.startswith(("shifted", "semantic")) for key in off.stats())


def test_declined_by_every_call_is_the_plain_engine(lab):
    on = lab.engine(Asks(shifted=True, semantic=True, tau=-1.0, audit=1.0, kl_budget=1e9, flip_budget=1.0))
    assert outputs(lab, on, frozenset()) == outputs(lab, lab.engine(), None)
    assert on.stats()["shifted_chunks"] == on.stats()["semantic_substituted"] == 0


def test_the_same_calls_differ_with_the_tiers_on(lab):
    """What the two tests above compare would show a tier at work."""
    on = lab.engine(Asks(shifted=True, ratio=0.0, first=0, audit=0.0))
    assert outputs(lab, on, None) != outputs(lab, lab.engine(), None)
    assert on.stats()["shifted_chunks"] > 0
