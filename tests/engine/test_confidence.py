"""Groups of token confidences, and rows that end early by them, on the tiny model and alone."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from engine import native
from engine.base import BranchRequest, PruneRule, StepRule, stream_key
from engine.confidence import TOP, Groups, token_confidence
from engine.local import LocalEngine
from engine.plain import PlainEngine

WINDOW = 4


@given(st.lists(st.floats(0, 100), max_size=40), st.integers(1, 8))
def test_groups_are_means_of_sliding_windows(values, window):
    groups = Groups(PruneRule(window, 50.0))
    below = [groups.add(value) for value in values]
    means = [sum(values[i : i + window]) / window for i in range(len(values) - window + 1)]
    assert below[: window - 1] == [False] * min(window - 1, len(values))
    assert all(
        flag == (mean < 50.0) for flag, mean in zip(below[window - 1 :], means, strict=True) if abs(mean - 50) > 1e-6
    )
    if means:
        assert groups.lowest == pytest.approx(min(means), abs=1e-9)
    elif values:
        assert groups.lowest == pytest.approx(sum(values) / len(values))
    else:
        assert groups.lowest is None


def test_confidence_is_minus_the_mean_log_probability_and_stays_finite():
    assert token_confidence([-1.0, -3.0]) == 2.0
    assert token_confidence([0.0, -math.inf]) == 50.0


@pytest.fixture(scope="module")
def loaded(tiny_llama: Path) -> LocalEngine:
    return LocalEngine.load(str(tiny_llama), dtype="float32", device="cpu")


@pytest.fixture
def engine(loaded: LocalEngine):
    fresh = LocalEngine(loaded.model, loaded.codec, "tiny")
    yield fresh
    fresh.check_integrity()


def request(engine, floor=None, rows=6, prompt="A problem."):
    path = (tuple(engine.codec.encode(prompt)),)
    streams = tuple(stream_key("row", i) for i in range(rows))
    return BranchRequest("x", path, streams, StepRule(max_tokens=24), prune=PruneRule(WINDOW, floor))


def confidences(engine, path, tokens):
    """From one pass of the model over the whole row, without KV and without the engine's attention."""
    plain = PlainEngine(stock(engine), engine.codec)
    logits = [plain._last([[*path, *tokens[:i]]])[0] for i in range(len(tokens))]
    return [token_confidence(row.log_softmax(-1).topk(TOP).values.tolist()) for row in logits]


def stock(engine):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(engine.model.config._name_or_path, dtype=torch.float32)


def lowest_of(values):
    return min(sum(values[i : i + WINDOW]) / WINDOW for i in range(len(values) - WINDOW + 1))


def test_the_lowest_group_is_that_of_the_model(engine):
    wanted = request(engine, rows=2)
    for branch in engine.expand([wanted])[0].branches:
        values = confidences(engine, wanted.path[0], branch.token_ids)
        assert branch.lowest == pytest.approx(lowest_of(values), rel=1e-4)
    unwatched = engine.expand([replace(wanted, prune=None)])[0].branches
    assert [b.lowest for b in unwatched] == [None, None]


def test_rows_below_the_floor_end_at_their_first_low_group_and_others_are_untouched(engine):
    whole = engine.expand([request(engine)])[0].branches
    floor = sorted(branch.lowest for branch in whole)[3]
    cut = engine.expand([request(engine, floor)])[0]
    assert cut.usage.generated == sum(len(branch.token_ids) for branch in cut.branches)
    assert cut.usage.generated < sum(len(branch.token_ids) for branch in whole)
    for full, branch in zip(whole, cut.branches, strict=True):
        if full.lowest >= floor:
            assert branch == full
        else:
            assert branch.finish == "pruned" and branch.lowest < floor
            assert full.token_ids[: len(branch.token_ids)] == branch.token_ids
            assert len(branch.token_ids) >= WINDOW
    assert {branch.finish for branch in cut.branches} >= {"pruned", "length"} or any(b.finish == "eos" for b in whole)


@pytest.mark.skipif(native.kernels(torch.float32) is None, reason="equal bits need the own CPU kernels")
def test_a_row_is_pruned_alike_alone_and_in_any_batch(engine, loaded):
    whole = engine.expand([request(engine)])[0].branches
    floor = sorted(branch.lowest for branch in whole)[3]
    together = engine.expand([request(engine, floor), replace(request(engine, prompt="Another one."), id="y")])[0]
    for i, branch in enumerate(together.branches):
        other = LocalEngine(loaded.model, loaded.codec, "tiny")
        wanted = request(engine, floor)
        assert other.expand([replace(wanted, streams=wanted.streams[i : i + 1])])[0].branches == (branch,)


def test_the_plain_path_prunes_too(engine):
    floor = 1e9
    found = PlainEngine(stock(engine), engine.codec).expand([request(engine, floor, rows=2)])[0].branches
    assert [(branch.finish, len(branch.token_ids)) for branch in found] == [("pruned", WINDOW)] * 2
