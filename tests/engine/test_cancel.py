"""Case 29: a cancelled request keeps its partial text and token count, and its KV is freed within one step."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from actors.convert import to_request
from actors.engine_actor import EngineActor
from engine.base import BranchRequest, StepRule, stream_key
from engine.local import LocalEngine
from search.types import Expansion, Sampling

RULE = StepRule(max_tokens=60)


@pytest.fixture(scope="module")
def loaded(tiny_llama: Path) -> LocalEngine:
    return LocalEngine.load(str(tiny_llama), dtype="float32", device="cpu")


@pytest.fixture
def engine(loaded: LocalEngine):
    fresh = LocalEngine(loaded.model, loaded.codec, "tiny", prefill_chunk=32)
    yield fresh
    fresh.check_integrity()
    assert fresh._scheduler.admission.buffer_bytes() == 0
    assert all(segment.readers == 0 for segment in fresh.tree.segments())


def request(engine, name, text, n=3):
    path = (tuple(engine.codec.encode(text)),)
    return BranchRequest(name, path, tuple(stream_key(name, i) for i in range(n)), RULE)


def watch(engine, at_step):
    """Call `at_step[i]` during the model's i-th pass; returns the rows of each pass."""
    rows, forward = [], engine._scheduler.forward

    def watched(feeds):
        rows.append(sum(len(new) for _, new, wanted in feeds if wanted))
        if len(rows) in at_step:
            at_step[len(rows)]()
        return forward(feeds)

    engine._scheduler.forward = watched
    return rows


def test_case_29_cancelling_mid_step_keeps_the_text_and_frees_the_kv_within_one_step(engine, loaded):
    ask = request(engine, "a", "A short prompt.")
    whole = LocalEngine(loaded.model, loaded.codec, "tiny").expand([ask])[0].branches

    def cancel():
        thread = threading.Thread(target=engine.cancel, args=(["a", "unknown"],))
        thread.start()
        thread.join(1)

    rows = watch(engine, {9: cancel})
    result = engine.expand([ask])[0]
    assert rows == [0] + [3] * 8
    assert result.error is None and result.usage.generated == 24
    for branch, full in zip(result.branches, whole, strict=True):
        assert branch.finish == "cancelled"
        assert branch.token_ids == full.token_ids[:8]
        assert branch.text == engine.codec.decode(branch.token_ids).rstrip("\ufffd") and full.text.startswith(
            branch.text
        )
    assert engine.tree.num_tokens == len(ask.path[0]) - 1
    assert engine.expand([ask])[0].branches == whole


def test_the_other_rows_of_the_batch_go_on_unchanged(engine, loaded):
    asks = [request(engine, name, f"Prompt {name} of several. ") for name in "abc"]
    alone = [LocalEngine(loaded.model, loaded.codec, "tiny").expand([ask])[0].branches for ask in asks]
    watch(engine, {12: lambda: engine.cancel(["b"])})
    found = engine.expand(asks)
    assert [found[i].branches for i in (0, 2)] == [alone[0], alone[2]]
    assert {branch.finish for branch in found[1].branches} == {"cancelled"}
    for branch, full in zip(found[1].branches, alone[1], strict=True):
        assert branch.token_ids == full.token_ids[: len(branch.token_ids)] and 0 < len(branch.token_ids) < 20


def test_a_request_is_cancelled_while_its_path_is_prefilled(engine):
    rows = watch(engine, {2: lambda: engine.cancel(["a"])})
    result = engine.expand([request(engine, "a", "x" * 500)])[0]
    assert rows == [0, 0]
    assert [(b.finish, b.token_ids, b.text) for b in result.branches] == [("cancelled", (), "")] * 3
    assert (engine.tree.num_tokens, result.usage.generated) == (0, 0)


def test_one_of_two_requests_on_a_path_is_cancelled_while_it_is_prefilled(engine, loaded):
    a, b = request(engine, "a", "x" * 200), request(engine, "b", "x" * 200, n=2)
    watch(engine, {2: lambda: engine.cancel(["a"])})
    found = engine.expand([a, b])
    assert [branch.token_ids for branch in found[0].branches] == [()] * 3
    assert found[1].branches == LocalEngine(loaded.model, loaded.codec, "tiny").expand([b])[0].branches


def test_a_request_that_waits_is_cancelled_before_it_starts(loaded):
    engine = LocalEngine(loaded.model, loaded.codec, "tiny", max_rows=3)
    asks = [request(engine, name, f"Prompt {name}. ") for name in "ab"]
    rows = watch(engine, {5: lambda: engine.cancel(["b"])})
    found = engine.expand(asks)
    assert {branch.finish for branch in found[0].branches} <= {"length", "eos"}
    assert [(b.finish, b.token_ids) for b in found[1].branches] == [("cancelled", ())] * 3
    assert (found[1].usage.prefilled, found[1].usage.reused, found[1].usage.held) == (0, {"exact": 0}, 0)
    assert max(rows) == 3 and not engine._scheduler._waiting


def test_a_cancelled_part_gives_its_bytes_to_the_next(engine, loaded):
    """Rows of b wait for bytes that a has; they start in the step in which a is cancelled."""
    a, b = (request(engine, name, "A short prompt.", n=4) for name in "ab")
    tokens = len(a.path[0]) + 4 * RULE.max_tokens + 30
    tight = LocalEngine(loaded.model, loaded.codec, "tiny", kv_budget_bytes=tokens * engine.shape.bytes_per_token)
    rows = watch(tight, {10: lambda: tight.cancel(["a"])})
    found = tight.expand([a, b])
    assert max(rows) == 4
    assert rows[9:11] == [4, 4]
    assert {x.finish for x in found[0].branches} == {"cancelled"}
    assert found[1].branches == LocalEngine(loaded.model, loaded.codec, "tiny").expand([b])[0].branches
    tight.check_integrity()


def test_a_request_that_waits_for_its_turn_can_be_cancelled(engine):
    """Between its call and the step that takes it in."""
    found = []

    def late():
        found.extend(engine.expand([request(engine, "b", "Another prompt.")]))

    thread = threading.Thread(target=late)

    def come_and_cancel():
        thread.start()
        until = time.monotonic() + 30
        while not engine.stats()["waiting"]:
            assert time.monotonic() < until
            time.sleep(0.001)
        engine.cancel(["b"])

    watch(engine, {3: come_and_cancel})
    (first,) = engine.expand([request(engine, "a", "A short prompt.")])
    thread.join(30)
    assert {branch.finish for branch in first.branches} == {"length"}
    assert {branch.finish for branch in found[0].branches} == {"cancelled"} and found[0].usage.generated == 0


def test_a_recall_between_the_actors_look_and_the_engines_queue_is_not_lost(engine, monkeypatch):
    """Other calls keep the batch running meanwhile."""
    actor = EngineActor("a", lambda: engine)
    order = Expansion("o", "p", "n", (tuple(engine.codec.encode("Prompt.")),), 2, Sampling(max_tokens=60))

    def late(order, id):
        actor.cancel([id])
        engine.expand([request(engine, "b", "Another prompt.", n=1)])
        return to_request(order, id)

    monkeypatch.setattr("actors.engine_actor.to_request", late)
    (found,) = actor.expand([order], "t")
    assert [(sample.finish, sample.token_ids) for sample in found.samples] == [("cancelled", ())] * 2


# -- rules that raise ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("rule", "words"), [({"fn": lambda text: {}[text]}, "KeyError"), ({"regex": "("}, "error: ")])
def test_a_rule_that_raises_fails_its_own_request_alone(engine, loaded, rule, words):
    good, bad = request(engine, "a", "A short prompt."), request(engine, "b", "Another prompt.")
    found = engine.expand([good, replace(bad, rule=StepRule(max_tokens=60, **rule))])
    assert found[0].branches == LocalEngine(loaded.model, loaded.codec, "tiny").expand([good])[0].branches
    assert f"the rule of where a step ends raised {words}" in found[1].error and found[1].branches == ()


# -- deadlines -----------------------------------------------------------------------------------------------------
def timed(loaded, **options):
    """An engine and the time that it knows, in seconds."""
    now = [0.0]
    return LocalEngine(loaded.model, loaded.codec, "tiny", prefill_chunk=32, clock=lambda: now[0], **options), now


def test_a_request_whose_deadline_passes_while_it_waits_ends_unstarted(loaded):
    engine, now = timed(loaded, max_rows=3)
    asks = [request(engine, "a", "Prompt a. "), replace(request(engine, "b", "Prompt b. "), deadline_s=5.0)]
    rows = watch(engine, {9: lambda: now.append(now.pop() + 9.0)})
    found = engine.expand(asks)
    assert {branch.finish for branch in found[0].branches} <= {"length", "eos"}
    assert [(b.finish, b.token_ids) for b in found[1].branches] == [("cancelled", ())] * 3
    assert found[1].usage.prefilled == 0 and max(rows) == 3
    engine.check_integrity()


def test_a_request_whose_deadline_passes_while_it_is_prefilled_ends_at_the_next_step(loaded):
    engine, now = timed(loaded)
    late, other = request(engine, "a", "x" * 500), request(engine, "b", "x" * 500, n=1)
    rows = watch(engine, {2: lambda: now.append(now.pop() + 9.0)})
    found = engine.expand([replace(late, deadline_s=5.0)])[0]
    assert rows == [0, 0]
    assert [(b.finish, b.token_ids) for b in found.branches] == [("cancelled", ())] * 3
    assert engine.expand([other])[0].branches[0].token_ids
    engine.check_integrity()
