"""Random calls with and without tiers under tight budgets: the books balance, and who declines gets the plain bits."""

import random

import pytest

torch = pytest.importorskip("torch")

from engine.asks.options import Asks
from engine.base import BranchRequest, ScoreQuery, StepRule, path_keys
from tests.engine.asks.conftest import BODY

HINTS = ("", "Be quick. ", "Think it over slowly, twice. ", "In words of one syllable. ")
BODIES = (BODY, BODY.replace("17", "18"), BODY[20:] + BODY[:70])
TIERS = (None, frozenset(), frozenset({"shifted"}), frozenset({"semantic"}))
ASKS = Asks(shifted=True, semantic=True, tau=0.5, audit=0.5, kl_budget=1e9, flip_budget=1.0)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("budget", [None, 450, 800])
def test_random_calls(lab, seed, budget):
    draw = random.Random(f"{seed} {budget}")
    per_token = lab.loaded.shape.bytes_per_token
    options = {} if budget is None else {"kv_budget_bytes": budget * per_token, "host_budget_bytes": 200 * per_token}
    engine, plain = lab.engine(ASKS, **options), lab.engine()
    grown: list[tuple[tuple[int, ...], ...]] = []
    for step in range(25):
        paths = [lab.path(draw.choice(HINTS) + draw.choice(BODIES)) for _ in range(draw.randint(1, 3))]
        if grown and draw.random() < 0.4:
            paths[0] = draw.choice(grown)
        tiers = draw.choice(TIERS)
        asks = [BranchRequest(f"{step}.{i}", p, (step, i), StepRule(6), tiers=tiers) for i, p in enumerate(paths)]
        results = engine.expand(asks)
        engine.check_integrity()
        assert [r.error for r in results] == [None] * len(asks)
        for ask, result in zip(asks, results, strict=True):
            usage = result.usage
            assert usage.prefilled + sum(usage.reused.values()) == 2 * (sum(map(len, ask.path)) - 1)
            grown.append((*ask.path, result.branches[0].token_ids))
        if tiers == frozenset():
            assert [r.branches for r in results] == [r.branches for r in plain.expand(asks)]
        if draw.random() < 0.3:
            scores = engine.score([ScoreQuery("s", draw.choice(grown), " Right?", tiers=draw.choice(TIERS))])
            assert scores[0].error is None
        if draw.random() < 0.2:
            engine.release([path_keys("tiny", draw.choice(grown))[draw.randint(0, 1)]])
        engine.check_integrity()
        assert not any(segment.readers for segment in engine.tree.segments())
    assert engine.stats()["shifted_chunks"] > 0
    assert engine.stats()["semantic_substituted"] + engine.stats()["semantic_independent"] > 0
