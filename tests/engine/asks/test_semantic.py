"""Tier `semantic`: sigma from hidden states, substitution at tau, independence below it."""

import math

import pytest

torch = pytest.importorskip("torch")

from engine.admission import spans_of
from engine.asks.options import Asks, paper_tau
from engine.asks.semantic import sigma
from engine.base import flat
from engine.row_kv import RowKV
from tests.engine.asks.conftest import BODY

OTHER = BODY.replace("17", "18")


def test_sigma_is_the_papers_formula():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(6, 32, generator=generator), torch.randn(6, 32, generator=generator)
    weights = [math.exp(1.5 * layer / 6) for layer in range(1, 7)]
    cosines = [float((a[i] @ b[i]) / (a[i].norm() * b[i].norm())) for i in range(6)]
    expected = sum(w * c for w, c in zip(weights, cosines, strict=True)) / sum(weights)
    assert sigma(a, b, 1.5) == pytest.approx(expected, abs=1e-6)
    assert sigma(a, a, 1.5) == pytest.approx(1.0, abs=1e-6)
    one = a.clone()
    one[0] = -one[0]
    last = a.clone()
    last[5] = -last[5]
    assert sigma(a, one, 1.5) > sigma(a, last, 1.5)


@pytest.mark.parametrize(
    ("name", "tau"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", 0.82),
        ("meta-llama/Meta-Llama-3-8B-Instruct", 0.82),
        ("mistralai/Mistral-7B-v0.3", 0.80),
        ("tiiuae/Falcon3-10B-Base", 0.80),
        ("embedded", 0.75),
    ],
)
def test_the_papers_presets_by_model_name(name, tau):
    assert paper_tau(name) == tau
    assert Asks(semantic=True, tau="paper").threshold(name) == tau
    assert Asks(semantic=True, tau=0.9).threshold(name) == 0.9


def test_semantic_has_to_be_asked_for_with_a_tau():
    assert Asks().tiers == frozenset()
    with pytest.raises(ValueError, match="needs tau: a number from a calibration record, or 'paper'"):
        Asks(semantic=True)
    with pytest.raises(ValueError, match="'paper' or None"):
        Asks(semantic=True, tau="papr")


def test_at_tau_the_rows_run_on_the_roots_kv(lab):
    engine = lab.engine(Asks(semantic=True, tau=-1.0, audit=1.0, kl_budget=1e9, flip_budget=1.0))
    engine.expand([lab.ask(BODY)])
    result = engine.expand([lab.ask(OTHER, n=3, new=1)])[0]
    stats = engine.stats()
    assert (stats["semantic_substituted"], stats["semantic_independent"]) == (1, 0)
    root, last = flat(lab.path(BODY)), flat(lab.path(OTHER))[-1]
    row = RowKV(engine.shape, spans_of(engine.tree.reach(root[:-1])), 1)
    logits = engine.forward([(row, [last], True)])[0].log_softmax(-1)
    for branch in result.branches:
        assert branch.logprob == pytest.approx(float(logits[branch.token_ids[0]]), abs=1e-5)
    missing = result.usage.prefilled
    common = len(root) - 1 - missing
    assert result.usage.reused == {"exact": 2 * common, "layout": common, "semantic": 2 * missing}
    assert stats["semantic_audits"] == 1 and stats["semantic_kl_mean"] > 0
    assert engine.tree.held(flat(lab.path(OTHER))) < len(root) - 1


def test_below_tau_the_branch_is_computed_and_the_engine_says_so(lab, caplog):
    engine = lab.engine(Asks(semantic=True, tau=1.0))
    engine.expand([lab.ask(BODY)])
    with caplog.at_level("INFO"):
        result = engine.expand([lab.ask(OTHER)])[0]
    assert result.branches == lab.engine().expand([lab.ask(OTHER)])[0].branches
    stats = engine.stats()
    assert (stats["semantic_substituted"], stats["semantic_independent"]) == (0, 1)
    assert stats["semantic_sigma"] < 1.0
    assert any("computed independently" in line for line in caplog.messages)
    assert "semantic" not in result.usage.reused


def test_equal_hidden_states_reach_any_tau(lab):
    """The same prompt is an exact hit: sigma is never needed."""
    engine = lab.engine(Asks(semantic=True, tau=1.0))
    engine.expand([lab.ask(BODY)])
    again = engine.expand([lab.ask(BODY)])[0]
    assert again.usage.prefilled == 0 and engine.stats()["semantic_independent"] == 0


def test_budgets_hold_with_substitution(lab):
    per_token = lab.loaded.shape.bytes_per_token
    engine = lab.engine(Asks(semantic=True, tau=-1.0, audit=1.0, kl_budget=1e9), kv_budget_bytes=per_token * 300)
    for i in range(8):
        assert engine.expand([lab.ask(f"{i} {BODY}")])[0].error is None
        engine.check_integrity()
    assert engine.stats()["semantic_substituted"] > 0


def test_the_audit_switches_substitution_off(lab):
    engine = lab.engine(Asks(semantic=True, tau=-1.0, audit=1.0, kl_budget=0.0))
    engine.expand([lab.ask(BODY)])
    for i in range(14):
        engine.expand([lab.ask(f"{i} {BODY}", n=1, new=1)])
    stats = engine.stats()
    assert stats["semantic_on"] is False and stats["semantic_substituted"] < 14
