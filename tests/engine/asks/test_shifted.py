"""Tier `shifted`: moved chunks, their repair, their counts, and who may see them."""

import math

import pytest

torch = pytest.importorskip("torch")

from engine.admission import spans_of
from engine.asks.options import Asks
from engine.asks.repair import repair
from engine.asks.rope import rotated
from engine.asks.windows import shares
from engine.base import ScoreQuery, flat, path_keys
from engine.row_kv import RowKV
from tests.engine.asks.conftest import BODY

FIRST, SECOND = "Be quick. ", "Think it over slowly, twice. "


def logits_behind(engine, path, approximate):
    """Logits behind the last token of a path on what is held of it."""
    end = engine.tree.reach(path[:-1], approximate)
    assert end.end == len(path) - 1
    return engine.forward([(RowKV(engine.shape, spans_of(end), 1), [path[-1]], True)])[0]


def exact_logits(lab, path):
    engine = lab.engine()
    row = RowKV(engine.shape, [], len(path))
    return engine.forward([(row, path, True)])[0]


def reused(lab, asks, **options):
    engine = lab.engine(asks, **options)
    engine.expand([lab.ask(FIRST + BODY)])
    return engine, engine.expand([lab.ask(SECOND + BODY)])[0]


def test_ratio_one_equals_full_computation(lab):
    engine, result = reused(lab, Asks(shifted=True, ratio=1.0, audit=0.0))
    path = flat(lab.path(SECOND + BODY))
    assert engine.stats()["shifted_chunks"] == 1
    assert result.usage.prefilled == len(path) - 1
    difference = (logits_behind(engine, path, True) - exact_logits(lab, path)).abs().max()
    assert float(difference) <= 1e-4


def test_more_repair_is_nearer_to_the_exact_logits(lab):
    path = flat(lab.path(SECOND + BODY))
    exact = exact_logits(lab, path)
    far = []
    for ratio in (0.0, 0.5, 1.0):
        engine, _ = reused(lab, Asks(shifted=True, ratio=ratio, audit=0.0))
        far.append(float((logits_behind(engine, path, True) - exact).norm()))
    assert far[0] > far[1] > far[2]


def test_moved_keys_of_the_first_layer_are_those_of_the_new_position(lab):
    """K of layer 0 depends on token and position alone, so it checks the rotation itself."""
    engine = lab.engine()
    tokens = flat(lab.path(BODY))
    inv_freq = engine.model.rotary.inv_freq
    rows = []
    for before in (3, 50):
        row = RowKV(engine.shape, [], before + len(tokens))
        engine.forward([(row, [5] * before + list(tokens), False)])
        rows.append(row.payload(before, before + len(tokens)).k[0])
    assert torch.allclose(rotated(rows[0], 47, inv_freq), rows[1], atol=1e-4)
    assert torch.allclose(rotated(rows[1], -47, inv_freq), rows[0], atol=1e-4)
    assert not torch.allclose(rows[0], rows[1], atol=1e-2)


def test_every_token_is_counted_under_one_tier(lab):
    engine, result = reused(lab, Asks(shifted=True, audit=0.0))
    usage, length = result.usage, len(flat(lab.path(SECOND + BODY))) - 1
    assert usage.prefilled + sum(usage.reused.values()) == 2 * length
    assert usage.prefilled < length
    chunk, first = len(BODY), 8
    least = length - chunk + max(first, math.ceil(0.15 * chunk)) - 2
    assert least <= usage.prefilled <= length - chunk + math.ceil(0.15 * chunk) + first + 2
    again = engine.expand([lab.ask(SECOND + BODY)])[0].usage
    assert again.prefilled == 0 and again.reused["shifted"] == 2 * length


def test_a_call_may_decline_and_then_gets_the_plain_bits(lab):
    engine, approximate = reused(lab, Asks(shifted=True, ratio=0.0, first=0, audit=0.0))
    declined = engine.expand([lab.ask(SECOND + BODY, tiers=frozenset())])[0]
    plain = lab.engine().expand([lab.ask(SECOND + BODY)])[0]
    assert declined.branches == plain.branches
    assert "shifted" not in declined.usage.reused
    assert [b.logprob for b in approximate.branches] != [b.logprob for b in plain.branches]
    path = flat(lab.path(SECOND + BODY))
    assert engine.tree.reach(path[:-1], True) is engine.tree.reach(path[:-1])


def test_approximate_kv_is_told_to_nobody_and_released_with_its_path(lab):
    engine, _ = reused(lab, Asks(shifted=True, audit=0.0))
    path = lab.path(SECOND + BODY)
    key = path_keys("tiny", path)[0]
    assert key not in {event.key for event in engine.events()} | {event.key for event in engine.snapshot()}
    with pytest.raises(ValueError, match="no KV is held"):
        engine.export_kv(engine.tree.reach(flat(path)[:-1], True).key)
    before = engine.tree.num_tokens
    engine.release([key])
    assert engine.tree.num_tokens < before
    assert engine.tree.match(flat(path)[:-1], True).length < len(flat(path)) // 2


def test_children_and_scores_go_on_behind_approximate_kv(lab):
    engine, result = reused(lab, Asks(shifted=True, audit=0.0))
    path = lab.path(SECOND + BODY)
    child = (*path, result.branches[0].token_ids)
    score = engine.score([ScoreQuery("q", child, " Yes or no?")])[0]
    assert score.error is None and score.usage.prefilled == 0
    assert score.usage.reused["shifted"] == len(flat(child)) - 1 - score.usage.reused["exact"] > 0


def test_budgets_hold_with_moved_chunks_and_audits(lab):
    per_token = lab.loaded.shape.bytes_per_token
    engine = lab.engine(Asks(shifted=True, audit=1.0), kv_budget_bytes=per_token * 420)
    for i in range(6):
        result = engine.expand([lab.ask(f"{'Go on. ' * i}{i} " + BODY)])[0]
        assert result.error is None
        engine.check_integrity()
    stats = engine.stats()
    assert stats["shifted_chunks"] > 0
    assert stats["shifted_audits"] + stats["shifted_audits_skipped"] == stats["shifted_chunks"]


def test_a_tier_that_is_off_is_refused_by_name(lab):
    result = lab.engine().expand([lab.ask(BODY, tiers=frozenset({"shifted"}))])[0]
    assert "'shifted' is off" in str(result.error)
    wrong = lab.engine(Asks(shifted=True)).expand([lab.ask(BODY, tiers=frozenset({"shfted"}))])[0]
    assert "choices: shifted, semantic" in str(wrong.error)


def test_short_chunks_are_computed(lab):
    engine = lab.engine(Asks(shifted=True))
    engine.expand([lab.ask(FIRST + BODY[:60])])
    engine.expand([lab.ask(SECOND + BODY[:60])])
    assert engine.stats()["shifted_chunks"] == 0


def test_repair_needs_the_engines_own_layers(lab):
    class Other:
        model = torch.nn.Linear(1, 1)

    with pytest.raises(RuntimeError, match="Linear does not run on the engine's own layers"):
        repair(Other(), None, [1], None)


def test_prompts_of_one_call_share_a_chunk_too(lab):
    engine = lab.engine(Asks(shifted=True, audit=0.0))
    results = engine.expand([lab.ask(hint + BODY) for hint in (FIRST, SECOND)])
    assert engine.stats()["shifted_chunks"] == 1
    assert ["shifted" in r.usage.reused for r in results] == [False, True]


def test_no_two_texts_that_only_look_alike_share_a_chunk():
    text = tuple(range(100, 200))
    assert shares(text, (1, 2, 3, *text), 64)
    assert shares((7, *text[20:90]), text, 64)
    assert not shares((7, *text[20:80]), text, 64)
    assert not shares(tuple(reversed(text)), text, 64)
