"""The audit: its bounds against their definitions, and that a tier which errs switches itself off."""

import logging
import math

import pytest

torch = pytest.importorskip("torch")

from engine.asks.audit import Audit, Finding, compare, flip_high, flip_low, needed
from engine.asks.options import Asks
from tests.engine.asks.conftest import BODY

GOOD = Finding(kl=0.001, agrees=True, flip=False)


def audit(**changes) -> Audit:
    return Audit("shifted", **{"share": 0.05, "seed": 0, "kl_budget": 0.02, "flip_budget": 0.01, **changes})


def test_comparison_is_the_definition():
    exact, reused = torch.tensor([2.0, 1.0, 0.0]), torch.tensor([0.0, 3.0, 0.0])
    found = compare(exact, reused)
    p, q = exact.softmax(-1), reused.softmax(-1)
    assert found.kl == pytest.approx(float((p * (p / q).log()).sum()), rel=1e-5)
    assert (found.agrees, found.flip) == (False, True)
    assert compare(exact, exact) == Finding(0.0, True, False)
    tie = compare(torch.tensor([1.0, 0.99]), torch.tensor([0.99, 1.0]))
    assert (tie.agrees, tie.flip) == (False, False)


@pytest.mark.parametrize(("n", "k"), [(299, 0), (50, 3), (10, 10), (7, 0)])
def test_bounds_of_flips_are_clopper_pearson(n, k):
    high, low = flip_high(n, k), flip_low(n, k)
    assert low <= k / n <= high
    tail = sum(math.comb(n, i) * high**i * (1 - high) ** (n - i) for i in range(k + 1))
    assert tail == pytest.approx(0.05 if k < n else 1.0, abs=1e-6)
    tail = sum(math.comb(n, i) * low**i * (1 - low) ** (n - i) for i in range(k, n + 1))
    assert tail == pytest.approx(0.05 if k else 1.0, abs=1e-6)


def test_299_findings_without_a_flip_certify_one_percent():
    assert needed(0.01) == 299
    assert flip_high(299, 0) <= 0.01 < flip_high(298, 0)


def test_good_findings_leave_the_tier_on():
    books = audit()
    for _ in range(1000):
        books.note(GOOD)
    assert books.on and books.stats()["shifted_audits"] == 1000


def test_a_mean_kl_above_budget_switches_off_with_a_line_in_the_log(caplog):
    books = audit()
    with caplog.at_level(logging.WARNING):
        for i in range(40):
            books.note(Finding(0.05 + 0.001 * (i % 3), True, False))
    assert not books.on
    assert len([line for line in caplog.messages if "'shifted' switched itself off" in line]) == 1
    assert "mean KL" in str(books.reason)


def test_flips_switch_off():
    books = audit()
    for i in range(60):
        books.note(Finding(0.001, i % 5 > 0, i % 5 == 0))
    assert not books.on and "flips" in str(books.reason)


def test_the_drawn_share_is_the_asked_one_and_repeatable():
    reuses = [i.to_bytes(16, "big") for i in range(4000)]
    drawn = [audit().due(reuse) for reuse in reuses]
    assert drawn == [audit().due(reuse) for reuse in reuses]
    assert drawn != [audit(seed=1).due(reuse) for reuse in reuses]
    assert 0.035 < sum(drawn) / len(drawn) < 0.065
    assert not any(audit(share=0.0).due(reuse) for reuse in reuses)
    assert all(audit(share=1.0).due(reuse) for reuse in reuses)


def test_an_engine_stops_shifting_when_its_audit_says_so(lab):
    engine = lab.engine(Asks(shifted=True, ratio=0.0, first=0, audit=1.0, kl_budget=0.0, flip_budget=1.0))
    engine.expand([lab.ask(BODY)])
    for i in range(14):
        engine.expand([lab.ask(f"{i}{'abcdefghijklmn'[i]} is the hint. " * 2 + BODY, n=1, new=1)])
    stats = engine.stats()
    assert stats["shifted_on"] is False
    assert 10 <= stats["shifted_audits"] == stats["shifted_chunks"] < 14
    assert stats["shifted_kl_mean"] > 0


def test_auditing_changes_no_result(lab):
    results = []
    for share in (0.0, 1.0):
        engine = lab.engine(Asks(shifted=True, audit=share))
        engine.expand([lab.ask("One. " + BODY)])
        results.append(engine.expand([lab.ask("Another one. " + BODY)])[0].branches)
    assert results[0] == results[1]


def test_full_repair_is_found_faultless(lab):
    engine = lab.engine(Asks(shifted=True, audit=1.0, ratio=1.0))
    engine.expand([lab.ask("One. " + BODY)])
    engine.expand([lab.ask("Another one. " + BODY)])
    stats = engine.stats()
    assert stats["shifted_audits"] == 1
    assert stats["shifted_kl_mean"] < 1e-6
    assert stats["shifted_top1_agreement"] == 1.0


def test_a_model_that_raises_leaves_the_books_balanced(lab, monkeypatch):
    for asks, name in ((Asks(shifted=True), "shifted.repair"), (Asks(semantic=True, tau=-1.0), "semantic.look")):
        engine = lab.engine(asks)
        engine.expand([lab.ask("One. " + BODY)])

        def broken(*args: object) -> None:
            raise RuntimeError("out of memory")

        with monkeypatch.context() as patch:
            patch.setattr(f"engine.asks.{name}", broken)
            with pytest.raises(RuntimeError, match="out of memory"):
                engine.expand([lab.ask("Another one. " + BODY)])
        engine.check_integrity()
        assert not any(segment.readers for segment in engine.tree.segments())
        assert engine.expand([lab.ask("Another one. " + BODY)])[0].error is None
