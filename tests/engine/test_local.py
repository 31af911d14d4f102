"""LocalEngine against plain transformers: exact logits, exact reuse, reproducible bits."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from engine import native
from engine.base import BranchRequest, ScoreQuery, StepRule, flat, path_keys, stream_key
from engine.local import LocalEngine

pytestmark = pytest.mark.skipif(
    native.kernels(torch.float32) is None, reason="equal bits need the own CPU kernels: no C++ compiler"
)

RULE = StepRule(max_tokens=12)


@pytest.fixture(scope="module")
def loaded(tiny_llama: Path) -> LocalEngine:
    return LocalEngine.load(str(tiny_llama), dtype="float32", device="cpu")


@pytest.fixture
def engine(loaded: LocalEngine):
    """A fresh KV tree on the loaded model; its books must balance at the end."""
    fresh = LocalEngine(loaded.model, loaded.codec, "tiny")
    yield fresh
    fresh.tree.check_integrity()


def another(engine: LocalEngine, **options) -> LocalEngine:
    return LocalEngine(engine.model, engine.codec, "tiny", **options)


def request(engine: LocalEngine, *texts: str, n: int = 3, rule: StepRule = RULE, **options) -> BranchRequest:
    path = tuple(tuple(engine.codec.encode(text)) for text in texts)
    return BranchRequest("x", path, tuple(stream_key("row", i) for i in range(n)), rule, **options)


def plain_logits(engine: LocalEngine, tokens):
    """Logits of the stock model with stock attention, float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(engine.model.config._name_or_path, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([list(tokens)])).logits[0]


def greedy_reference(engine: LocalEngine, tokens, steps: int) -> list[int]:
    tokens = list(tokens)
    for _ in range(steps):
        tokens.append(int(plain_logits(engine, tokens)[-1].argmax()))
    return tokens[-steps:]


def test_greedy_equals_the_stock_model(engine):
    ask = request(engine, "What is 3 + 4?", n=1, temperature=0.0)
    branch = engine.expand([ask])[0].branches[0]
    assert list(branch.token_ids) == greedy_reference(engine, flat(ask.path), len(branch.token_ids))


def test_logprobs_equal_the_stock_model_over_two_levels_and_ragged_rows(engine):
    first = engine.expand(
        [request(engine, "A prompt of some length. " * 12, n=4, rule=StepRule(max_tokens=9, tokens=9))]
    )
    prompt = request(engine, "A prompt of some length. " * 12).path[0]
    asks = [
        BranchRequest(str(i), (prompt, b.token_ids), (stream_key(i), stream_key(i, 1)), StepRule(max_tokens=5 + i))
        for i, b in enumerate(first[0].branches)
    ]
    for ask, result in zip(asks, engine.expand(asks), strict=True):
        for branch in result.branches:
            tokens = [*flat(ask.path), *branch.token_ids]
            logits = plain_logits(engine, tokens)[len(flat(ask.path)) - 1 : -1].log_softmax(-1)
            expected = logits.gather(1, torch.tensor(branch.token_ids)[:, None]).sum()
            assert branch.logprob == pytest.approx(float(expected), abs=1e-4 * len(branch.token_ids))


def test_same_bits_in_any_batch_order_and_after_recompute(engine):
    rule = StepRule(max_tokens=20)
    prompt = "Bits must not depend on company. " * 6
    together = engine.expand([request(engine, prompt, n=6, rule=rule)])[0].branches
    path = request(engine, prompt).path
    for i in (5, 2, 0):
        alone = another(engine).expand([BranchRequest("a", path, (stream_key("row", i),), rule)])[0].branches[0]
        assert alone == together[i]
    kids = [BranchRequest(str(i), (*path, b.token_ids), (1, 2, 3), rule) for i, b in enumerate(together)]
    grown = engine.expand(kids)
    recomputed = another(engine).expand(kids[::-1])[::-1]
    assert [r.branches for r in grown] == [r.branches for r in recomputed]


def test_prefill_in_chunks_of_any_size_gives_the_same_bits(engine):
    ask = request(engine, "x" * 700, n=1)
    whole = engine.expand([ask])[0].branches
    for chunk in (1, 37, 300):
        assert another(engine, prefill_chunk=chunk).expand([ask])[0].branches == whole


def test_a_child_prefills_only_what_no_ancestor_holds(engine):
    ask = request(engine, "Some prompt to share.")
    first = engine.expand([ask])[0]
    length = len(flat(ask.path))
    assert first.usage.prefilled == length - 1
    assert first.usage.reused == {"exact": 2 * (length - 1)}
    kids = [BranchRequest(str(i), (*ask.path, b.token_ids), (7, 8), RULE) for i, b in enumerate(first.branches)]
    for kid, result in zip(kids, engine.expand(kids), strict=True):
        assert result.usage.prefilled == 0
        assert result.usage.reused == {"exact": 2 * (len(flat(kid.path)) - 1)}
    again = engine.expand([replace(ask, streams=(99,))])[0]
    assert again.usage.prefilled == 0


def test_prefix_is_stored_once(engine):
    ask = request(engine, "Stored once. " * 20, n=8)
    branches = engine.expand([ask])[0].branches
    distinct = {flat(ask.path)[: i + 1] for i in range(len(flat(ask.path)))}
    for branch in branches:
        tokens = (*flat(ask.path), *branch.token_ids[:-1])
        distinct |= {tokens[: i + 1] for i in range(len(tokens))}
    assert engine.tree.num_tokens == len(distinct)
    assert engine.tree.num_bytes == len(distinct) * engine.shape.bytes_per_token


def test_finish_reasons(engine):
    text = engine.expand([request(engine, "Say something.", n=1, rule=StepRule(max_tokens=30))])[0].branches[0].text
    assert len(text) > 6
    cases = {
        "length": StepRule(max_tokens=3),
        "stop": StepRule(max_tokens=30, stop=(text[2:4],)),
        "step": StepRule(max_tokens=30, regex="(?s)^.{4}"),
    }
    for finish, rule in cases.items():
        assert engine.expand([request(engine, "Say something.", n=1, rule=rule)])[0].branches[0].finish == finish
    by_count = StepRule(max_tokens=30, tokens=5)
    branch = engine.expand([request(engine, "Say something.", n=1, rule=by_count)])[0].branches[0]
    assert (branch.finish, len(branch.token_ids)) == ("step", 5)
    by_call = StepRule(max_tokens=30, fn=lambda text: len(text) >= 4)
    assert engine.expand([request(engine, "Say something.", n=1, rule=by_call)])[0].branches[0].finish == "step"


def test_eos_ends_a_row_and_is_kept_out_of_the_text(engine):
    ask = request(engine, "Say something.", n=1, rule=StepRule(max_tokens=8))
    free = engine.expand([ask])[0].branches[0]
    codec = copy.copy(engine.codec)
    codec.__dict__["eos_ids"] = frozenset({free.token_ids[3]})
    branch = LocalEngine(engine.model, codec, "tiny").expand([ask])[0].branches[0]
    stop = free.token_ids.index(free.token_ids[3])
    assert branch.finish == "eos"
    assert branch.token_ids == free.token_ids[: stop + 1]
    assert branch.text == codec.decode(free.token_ids[:stop])


def test_a_stop_string_that_is_a_special_token_ends_a_row_though_no_text_has_it(engine, monkeypatch):
    ask = request(engine, "Say something.", n=1, rule=StepRule(max_tokens=8, stop=("<|end|>",)))
    free = engine.expand([ask])[0].branches[0]
    assert engine.codec.special("<|end|>") == engine.codec.encode("<|end|>")[0]
    assert engine.codec.special("Yes") is None
    monkeypatch.setattr(type(engine.codec), "special", lambda self, text: free.token_ids[3])
    branch = engine.expand([ask])[0].branches[0]
    at = free.token_ids.index(free.token_ids[3])
    assert (branch.finish, branch.token_ids) == ("stop", free.token_ids[: at + 1])


def test_deadline_cancels_and_keeps_the_partial_text(engine):
    times = iter(range(10_000))
    slow = another(engine, clock=lambda: float(next(times)))
    branch = slow.expand([request(engine, "Go on.", n=1, rule=StepRule(max_tokens=50), deadline_s=5.0)])[0].branches[0]
    assert branch.finish == "cancelled"
    assert 0 < len(branch.token_ids) < 50
    assert branch.text == engine.codec.decode(branch.token_ids).rstrip("\ufffd")


def test_score_equals_re_encoding_and_single_rows_equal_the_batch(engine):
    question = engine.codec.next_turn("Is it right?")
    ask = request(engine, "A prompt.", n=3)
    paths = [(*ask.path, b.token_ids) for b in engine.expand([ask])[0].branches]
    queries = [ScoreQuery(str(i), path, question) for i, path in enumerate(paths)]
    scores = engine.score(queries)
    for query, score in zip(queries, scores, strict=True):
        logits = plain_logits(engine, [*flat(query.path), *engine.codec.encode(question)])[-1]
        expected = engine.labels.p_yes(logits)
        assert score.p_yes == pytest.approx(expected, abs=1e-4)
        assert another(engine).score([query])[0].p_yes == score.p_yes
        assert score.usage.prefilled == 0
        assert score.usage.scored == len(engine.codec.encode(question)) + 1
    held = engine.tree.num_tokens
    engine.score(queries)
    assert engine.tree.num_tokens == held


def test_too_long_a_path_fails_alone(engine):
    good, bad = request(engine, "Short."), request(engine, "x" * 1020)
    results = engine.expand([good, bad, good])
    assert "exceed the model's context of 1024" in (results[1].error or "")
    assert [r.error for r in (results[0], results[2])] == [None, None]
    assert results[0].branches == results[2].branches


def test_row_limit_splits_a_call_without_changing_it(engine):
    asks = [replace(request(engine, f"Prompt {i}.", n=3), id=str(i)) for i in range(4)]
    assert [r.branches for r in another(engine, max_rows=4).expand(asks)] == [r.branches for r in engine.expand(asks)]


def test_budget_bounds_what_is_kept_and_answers_stay(engine):
    asks = [request(engine, f"Problem number {i}. " * 8) for i in range(6)]
    budget = 450 * engine.shape.bytes_per_token
    small, none = another(engine, kv_budget_bytes=budget), another(engine, kv_budget_bytes=0)
    for ask in asks:
        expected = engine.expand([ask])[0].branches
        assert small.expand([ask])[0].branches == expected
        assert none.expand([ask])[0].branches == expected
        assert small.stats()["kv_peak_bytes"] <= budget
        assert none.tree.num_bytes == 0
    assert small.tree.num_evicted > 0
    small.tree.check_integrity()


def test_release_frees_a_branch_and_all_below_it(engine):
    ask = request(engine, "To be pruned.")
    first = engine.expand([ask])[0]
    kid = BranchRequest("k", (*ask.path, first.branches[0].token_ids), (1, 2), RULE)
    before = engine.tree.num_tokens
    grandkids = engine.expand([kid])[0].branches
    engine.release([path_keys("tiny", (*kid.path, b.token_ids))[-1] for b in grandkids])
    engine.release([path_keys("tiny", kid.path)[-1]])
    assert engine.tree.num_tokens < before
    engine.release([path_keys("tiny", ask.path)[0]])
    assert engine.tree.num_tokens == 0


def test_streams_are_distinct_and_repeatable(engine):
    """test_case_75: n = 8, seed 0: 8 distinct streams, the same 8 next time."""
    rule = StepRule(max_tokens=16)
    first = engine.expand([request(engine, "Eight of them.", n=8, rule=rule)])[0].branches
    assert len({b.token_ids for b in first}) == 8
    assert another(engine).expand([request(engine, "Eight of them.", n=8, rule=rule)])[0].branches == first


def test_calls_from_several_threads_share_one_batch_and_change_nothing(engine):
    asks = [
        request(engine, f"Problem {i} of several. " * (1 + 3 * i), n=3, rule=StepRule(max_tokens=10 + i))
        for i in range(5)
    ]
    alone = [another(engine).expand([ask])[0].branches for ask in asks]
    steps_alone = sum(10 + i for i in range(5))
    shared = another(engine)
    counted, forward = [], shared._scheduler.forward
    shared._scheduler.forward = lambda feeds: counted.append(len(feeds)) or forward(feeds)
    gate = threading.Barrier(len(asks))

    def call(ask):
        gate.wait()
        return shared.expand([ask])[0].branches

    with ThreadPoolExecutor(len(asks)) as threads:
        together = list(threads.map(call, asks))
    assert together == alone
    assert len(counted) < steps_alone
    assert max(counted) > 1
    shared.tree.check_integrity()
    assert all(segment.readers == 0 for segment in shared.tree.segments())


def test_a_model_that_raises_fails_the_calls_under_way_and_nothing_hangs(engine):
    ask = request(engine, "It will break.")
    broken = another(engine)
    forward = broken._scheduler.forward
    calls = iter([True, True, False])

    def flaky(feeds):
        if next(calls, False):
            return forward(feeds)
        raise RuntimeError("out of memory")

    broken._scheduler.forward = flaky
    with pytest.raises(RuntimeError, match="out of memory"):
        broken.expand([ask])
    assert all(segment.readers == 0 for segment in broken.tree.segments())
    broken._scheduler.forward = forward
    assert broken.expand([ask])[0].branches == engine.expand([ask])[0].branches
    broken.tree.check_integrity()


def test_branches_behind_one_prefix_decode_together_and_are_prefilled_together(engine):
    prefix = tuple(engine.codec.encode("A shared prefix of some blocks. " * 12))
    tails = [tuple(engine.codec.encode(f"{i} is a hint. " * (1 + i))) for i in range(4)]
    asks = [BranchRequest(str(i), (prefix, tail), (i, i + 9), RULE) for i, tail in enumerate(tails)]
    shared = another(engine)
    steps, forward = [], shared._scheduler.forward

    def watched(feeds):
        steps.append(([row for row, _, wanted in feeds if wanted], [len(t) for _, t, wanted in feeds if not wanted]))
        return forward(feeds)

    shared._scheduler.forward = watched
    together = [result.branches for result in shared.expand(asks)]
    assert together == [another(engine).expand([ask])[0].branches for ask in asks]
    assert max(len(rows) for rows, _ in steps) == 8
    assert max(len(chunks) for _, chunks in steps) == 3
    assert sum(sum(chunks) for _, chunks in steps) == len(prefix) + sum(len(tail) - 1 for tail in tails)
    shared.check_integrity()


def test_steps_are_counted_while_a_call_runs(engine):
    """What tells a slow engine from a hung one: `actors.fleet`."""
    seen = []
    advance = engine.forward.model.forward

    def watched(*args, **kwargs):
        seen.append(engine.stats()["steps"])
        return advance(*args, **kwargs)

    engine.forward.model.forward = watched
    try:
        before = engine.stats()["steps"]
        engine.expand([BranchRequest("r", ((3, 4, 5, 6),), (1, 2), RULE)])
        engine.score([ScoreQuery("q", ((3, 4, 5, 6),), "Is it right?")])
    finally:
        del engine.forward.model.forward
    assert seen == list(range(before + 1, before + 1 + len(seen))) and len(seen) >= 3


def test_a_path_computed_in_one_piece_is_released_by_its_prompt(engine):
    """So it is where a branch goes on at an engine that did not grow it."""
    prompt, steps = tuple(range(3, 30)), [(40, 41, 42, 43), (40, 41, 50, 51)]
    engine.expand([BranchRequest(f"r{i}", (prompt, step), (i,), RULE) for i, step in enumerate(steps)])
    engine.score([ScoreQuery("q", (prompt, (60, 61, 62)), "Is it right?")])
    root = path_keys("tiny", (prompt,))[-1]
    assert engine.tree.find(root) is not None
    engine.release([root])
    assert engine.tree.num_tokens == 0
