"""The byte budget of a LocalEngine: never exceeded, whatever runs, and never a different answer (float32, CPU)."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from engine import native
from engine.admission import needed_alone
from engine.base import BranchRequest, ScoreQuery, StepRule, path_keys, stream_key
from engine.local import LocalEngine, _host_budget

pytestmark = pytest.mark.skipif(
    native.kernels(torch.float32) is None, reason="equal bits need the own CPU kernels: no C++ compiler"
)

PROMPT = "Find the way through a wood of many branches, step by step. " * 3


@pytest.fixture(scope="module")
def loaded(tiny_llama: Path) -> LocalEngine:
    return LocalEngine.load(str(tiny_llama), dtype="float32", device="cpu")


@pytest.fixture
def build(loaded: LocalEngine):
    """Engines on the loaded model; their books must balance at the end."""
    built = []

    def engine(**options) -> LocalEngine:
        built.append(LocalEngine(loaded.model, loaded.codec, "tiny", **options))
        return built[-1]

    yield engine
    for one in built:
        one.check_integrity()
        assert not one._scheduler.admission.claims
        assert all(segment.readers == 0 for segment in one.tree.segments())


def prompt(engine, text=PROMPT):
    return tuple(engine.codec.encode(text))


def ask(path, name="", n=3, tokens=12):
    streams = tuple(stream_key(name, len(path), i) for i in range(n))
    return BranchRequest(f"{name}{len(path)}", path, streams, StepRule(max_tokens=tokens))


def search(engine, levels=3, width=4):
    """A small beam search with scores: all branches and scores in order. Two problems, so that prompts come back."""
    question = engine.codec.next_turn("Is it right?")
    found = []
    beams = [[(prompt(engine),)], [(prompt(engine, "Another one. " * 12),)]]
    for level in range(levels):
        for number, beam in enumerate(beams):
            asks = [ask(path, f"{number}.{i}", width) for i, path in enumerate(beam)]
            results = engine.expand(asks)
            assert [result.error for result in results] == [None] * len(asks)
            kids = [(*a.path, b.token_ids) for a, r in zip(asks, results, strict=True) for b in r.branches]
            scores = engine.score([ScoreQuery(str(i), path, question) for i, path in enumerate(kids)])
            assert [score.error for score in scores] == [None] * len(kids)
            engine.note_scores(
                [(path_keys("tiny", k)[-1], s.p_yes, level + 1) for k, s in zip(kids, scores, strict=True)]
            )
            found.append(([r.branches for r in results], [score.p_yes for score in scores]))
            best = sorted(range(len(kids)), key=lambda i: -scores[i].p_yes)[: width - 1]
            beams[number] = [kids[i] for i in best]
    return found


@pytest.fixture(scope="module")
def wanted(loaded: LocalEngine):
    """What the search finds without a bound, and the bytes it wants."""
    free = LocalEngine(loaded.model, loaded.codec, "tiny")
    found = search(free)
    return found, free.stats()["kv_peak_bytes"]


# -- acceptance: half and a quarter of the KV ----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("share", "eviction", "host"),
    [(2, "lru", False), (2, "lru", True), (4, "lru", False), (4, "lru", True), (4, "omega", True), (4, "value", True)],
)
def test_a_part_of_the_kv_gives_the_same_search_within_its_budget(build, wanted, share, eviction, host):
    expected, peak = wanted
    budget = peak // share
    small = build(kv_budget_bytes=budget, eviction=eviction, host_budget_bytes=budget // 4 if host else 0)
    assert search(small) == expected
    stats = small.stats()
    assert 0 < stats["kv_peak_bytes"] <= budget
    assert stats["evicted"] > 0
    if host:
        assert stats["offloaded"] > 0 and stats["restored"] > 0
        assert stats["kv_host_bytes"] <= budget // 4
    else:
        assert stats["recomputed_tokens"] > 0 and stats["offloaded"] == 0


def resident_bytes(shape):
    """Bytes of all tensors in this process that look like KV, each memory once."""
    found = {}
    for thing in gc.get_objects():
        if type(thing) is torch.Tensor and thing.dim() in (4, 5) and thing.shape[0] == shape.layers:
            heads = thing.shape[1] if thing.dim() == 4 else thing.shape[2]
            if (heads, thing.shape[-1]) == (shape.kv_heads, shape.head_dim):
                storage = thing.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def test_the_books_are_the_bytes_that_are_really_there(build, wanted):
    budget = wanted[1] // 3
    engine = build(kv_budget_bytes=budget)
    gc.collect()
    before, seen = resident_bytes(engine.shape), []
    forward = engine._scheduler.forward

    def watched(feeds):
        if len(seen) % 7 == 0:
            booked = engine.tree.device.nbytes + engine._scheduler.admission.buffer_bytes()
            seen.append((resident_bytes(engine.shape) - before, booked))
        else:
            seen.append((0, 0))
        return forward(feeds)

    engine._scheduler.forward = watched
    search(engine)
    assert all(real == booked <= budget for real, booked in seen)
    assert max(real for real, _ in seen) > budget // 2


def test_engines_on_all_gpus_of_a_machine_offload_to_a_quarter_of_its_memory(monkeypatch, tmp_path):
    """Each process is shown one of eight GPUs."""
    for i in range(8):
        (tmp_path / f"gpu{i}").mkdir()
    monkeypatch.setattr("engine.local._DRIVER", tmp_path)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_AVPHYS_PAGES": 32_000}.__getitem__)
    assert 8 * _host_budget(torch.device("cuda")) == 4096 * 32_000 // 4
    monkeypatch.setattr("engine.local._DRIVER", tmp_path / "none")
    assert _host_budget(torch.device("cuda")) == 4096 * 32_000 // 4
    assert _host_budget(torch.device("cpu")) == 0


# -- admission -----------------------------------------------------------------------------------------------------
def test_a_budget_too_small_for_one_branch_names_needed_and_given_bytes(build):
    path = (prompt(build()),)
    needed = needed_alone(build().shape, len(path[0]) - 1, 12)
    exact, short = build(kv_budget_bytes=needed), build(kv_budget_bytes=needed - 1)
    fine = exact.expand([ask(path)])[0]
    assert fine.error is None and fine.branches == build().expand([ask(path)])[0].branches
    small = (path[0][:9],)
    results = short.expand([ask(path), ask(small)])
    assert f"{needed} bytes of KV, given {needed - 1}" in results[0].error
    assert results[1].error is None
    score = short.score([ScoreQuery("q", path, "Is it right?" * 20)])[0]
    assert "bytes of KV, given" in score.error and score.p_yes is None


def test_rows_that_do_not_fit_at_once_run_in_parts(build):
    path = (prompt(build()),)
    engine = build()
    budget = needed_alone(engine.shape, len(path[0]) - 1, 40) + 4 * 40 * engine.shape.bytes_per_token
    small = build(kv_budget_bytes=budget)
    most, forward = [], small._scheduler.forward
    small._scheduler.forward = lambda feeds: most.append(sum(wanted for _, _, wanted in feeds)) or forward(feeds)
    wide = ask(path, n=24, tokens=40)
    found, expected = small.expand([wide])[0], engine.expand([wide])[0]
    assert found.branches == expected.branches
    assert 1 < max(most) < 8
    assert found.usage.prefilled + sum(found.usage.reused.values()) == 24 * (len(path[0]) - 1)


@pytest.mark.parametrize("room", [0, 300, 900])
def test_calls_from_threads_wait_for_room_and_none_starves(build, room):
    texts = [f"Problem {i} of several. " * (1 + 3 * i) for i in range(5)]
    engine = build()
    paths = [(prompt(engine, text),) for text in texts]
    alone = [build().expand([ask(path, n=4, tokens=30)])[0].branches for path in paths]
    needed = needed_alone(engine.shape, max(len(p[0]) for p in paths) - 1, 80)
    small = build(kv_budget_bytes=needed + room * engine.shape.bytes_per_token)
    question = engine.codec.next_turn("Is it right?")
    scores = [build().score([ScoreQuery("s", path, question)])[0].p_yes for path in paths]
    gate = threading.Barrier(2 * len(paths))

    def expand(path):
        gate.wait()
        return small.expand([ask(path, n=4, tokens=30)])[0].branches

    def score(path):
        gate.wait()
        return small.score([ScoreQuery("s", path, question)])[0].p_yes

    with ThreadPoolExecutor(2 * len(paths)) as threads:
        grown = [threads.submit(expand, path) for path in paths]
        judged = [threads.submit(score, path) for path in paths]
        assert [future.result(60) for future in grown] == alone
        assert [future.result(60) for future in judged] == scores
    assert small._scheduler.closed == 0


def test_long_rows_grow_within_what_was_admitted(build):
    path = (prompt(build()),)
    long = ask(path, n=5, tokens=280)
    engine = build()
    expected = engine.expand([long])[0].branches
    budget = engine.stats()["kv_peak_bytes"] * 2 // 3
    small = build(kv_budget_bytes=budget)
    assert small.expand([long])[0].branches == expected
    assert max(len(branch.token_ids) for branch in expected) == 280


def test_a_zero_budget_keeps_nothing_but_bounds_no_running_rows(build):
    engine = build(kv_budget_bytes=0, host_budget_bytes=1 << 20)
    path = (prompt(engine),)
    assert engine.expand([ask(path, n=8)])[0].branches == build().expand([ask(path, n=8)])[0].branches
    assert (engine.tree.num_tokens, engine.stats()["kv_host_bytes"]) == (0, 0)
    assert engine.stats()["kv_peak_bytes"] > 0


def test_a_failed_step_frees_what_was_admitted(build):
    engine = build(kv_budget_bytes=1 << 20)
    path = (prompt(engine),)
    forward, calls = engine._scheduler.forward, iter([1, 1, 1])

    def flaky(feeds):
        if next(calls, None):
            return forward(feeds)
        raise RuntimeError("out of memory")

    engine._scheduler.forward = flaky
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.expand([ask(path)])
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.score([ScoreQuery("q", ((5, 6, 7, 8),), "?")])
    assert engine._scheduler.admission.buffer_bytes() == 0
    engine.check_integrity()
    engine._scheduler.forward = forward
    assert engine.expand([ask(path)])[0].branches == build().expand([ask(path)])[0].branches


@pytest.mark.parametrize(
    "place", ["engine.kv.KVShape.empty", "engine.admission.Admission.run", "engine.kv.TensorKV.to_device"]
)
def test_an_allocation_that_fails_while_a_request_is_admitted_leaves_nothing_behind(build, monkeypatch, place):
    """Whatever it was admitted for: its path, its rows, or KV that comes back from the host."""
    engine = build(kv_budget_bytes=200 * build().shape.bytes_per_token, host_budget_bytes=1 << 20)
    path = (prompt(engine, "y" * 150),)
    if place.endswith("to_device"):
        engine.expand([ask(path, tokens=9)])
        for segment in reversed(list(engine.tree.segments())):
            engine.tree.offload(segment)

    def full(*args, **kwargs):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="out of memory"):
        patch.setattr(place, full)
        engine.expand([ask(path, tokens=9)])
    assert not engine._scheduler.admission.claims
    engine.check_integrity()
    other = (prompt(engine, "z" * 150),)
    assert engine.expand([ask(other, tokens=9)])[0].branches == build().expand([ask(other, tokens=9)])[0].branches


# -- exact bits after every way KV can go --------------------------------------------------------------------------
@pytest.mark.parametrize("way", ["restored", "recomputed", "imported"])
def test_a_child_has_the_same_bits_whatever_happened_to_its_path(build, way):
    engine = build(host_budget_bytes=1 << 24 if way == "restored" else 0)
    path = (prompt(engine),)
    grown = engine.expand([ask(path, n=2, tokens=40)])[0].branches
    kids = [ask((*path, branch.token_ids), f"kid{i}", 3, 30) for i, branch in enumerate(grown)]
    question = engine.codec.next_turn("Is it right?")
    queries = [ScoreQuery(k.id, k.path, question) for k in kids]
    expected = [r.branches for r in engine.expand(kids)], [s.p_yes for s in engine.score(queries)]
    other = engine
    if way == "imported":
        other = build()
        for kid in kids:
            tokens = sum(map(len, kid.path)) - 1
            assert other.import_kv(engine.export_kv(path_keys("tiny", kid.path)[-1])) == tokens
    else:
        engine.tree.budget_bytes = 1
        engine.tree.enforce_budget()
        assert engine.tree.num_bytes == 0
        engine.tree.budget_bytes = None
        assert engine.stats()["offloaded"] == (engine.stats()["evicted"] if way == "restored" else 0)
    again = other.expand(kids)
    assert ([r.branches for r in again], [s.p_yes for s in other.score(queries)]) == expected
    prefilled = sum(r.usage.prefilled for r in again)
    assert (prefilled == 0) == (way != "recomputed")
    assert other.stats()["recomputed_tokens"] == prefilled
    assert (other.stats()["restored"] > 0) == (way == "restored")


def test_what_the_other_engine_holds_already_need_not_be_sent(build):
    engine, other = build(), build()
    path = (prompt(engine),)
    grown = engine.expand([ask(path, n=2, tokens=40)])[0].branches
    child = (*path, grown[0].token_ids)
    keys, start = path_keys("tiny", child), len(path[0]) - 1
    tail = engine.export_kv(keys[1], start)
    assert len(tail) < len(engine.export_kv(keys[1])) / 2
    assert other.import_kv(tail) == 0
    assert other.import_kv(engine.export_kv(keys[0])) == start
    assert other.import_kv(tail) == start + len(grown[0].token_ids)
    other.check_integrity()
    order = ask(child, "kid", 3, 30)
    found = other.expand([order])[0]
    assert found.branches == engine.expand([order])[0].branches
    assert found.usage.prefilled == 0
    with pytest.raises(ValueError, match="nothing of a path"):
        engine.export_kv(keys[0], start)


def test_exported_kv_is_refused_by_another_model_dtype_or_shape(build, loaded):
    import msgpack

    engine = build()
    path = (prompt(engine),)
    engine.expand([ask(path)])
    key = path_keys("tiny", path)[0]
    data = engine.export_kv(key)
    other = LocalEngine(loaded.model, loaded.codec, "another")
    with pytest.raises(ValueError, match="model 'tiny', this engine 'another'"):
        other.import_kv(data)
    fields = msgpack.unpackb(data)
    for field, value, message in (
        ("dtype", "bfloat16", "dtype 'bfloat16', this engine 'float32'"),
        ("shape", [3, *fields["shape"][1:]], "shape"),
        ("version", 9, "format version 9"),
        ("ends", [3], "ends"),
        ("ends", [], "ends"),
        ("k", b"", "bytes of keys"),
        ("tokens", b"abc", "it starts at 0"),
        ("start", -1, "it starts at -1"),
        ("start", 10_000, "it starts at 10000"),
        ("start", 3, "shape"),
        ("tokens", 7, "tokens is a int"),
    ):
        with pytest.raises(ValueError, match=message):
            build().import_kv(msgpack.packb(fields | {field: value}))
    for garbage in (b"", b"\xc1", b"\x93\x01\x02\x03", data[:-3]):
        with pytest.raises(ValueError, match="not exported KV"):
            build().import_kv(garbage)
    with pytest.raises(ValueError, match="no KV is held"):
        engine.export_kv(b"unknown")


def test_export_reads_the_host_too_and_import_keeps_segment_ends_and_budgets(build):
    engine = build(host_budget_bytes=1 << 24)
    path = (prompt(engine),)
    branch = engine.expand([ask(path, n=1)])[0].branches[0]
    keys = path_keys("tiny", (*path, branch.token_ids))
    fresh = engine.export_kv(keys[1])
    for segment in reversed(list(engine.tree.segments())):
        engine.tree.offload(segment)
    assert engine.export_kv(keys[1]) == fresh
    other = build()
    tokens = len(path[0]) + len(branch.token_ids) - 1
    assert other.import_kv(fresh) == other.import_kv(fresh) == other.tree.num_tokens == tokens
    other.release([keys[1]])
    assert other.tree.num_tokens == len(path[0]) - 1
    assert build(kv_budget_bytes=0).import_kv(fresh) == 0
    assert build(kv_budget_bytes=1000).import_kv(fresh) == 0
    assert "kv_export" in engine.capabilities
