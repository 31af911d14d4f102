"""Attention implementations against softmax written out, which rows read a span together, and the own kernel's bits."""

import pytest

torch = pytest.importorskip("torch")

from engine import native
from engine.attention import Batch, Scoring, choose
from engine.attention.flash import _waves
from engine.kv import KVShape, TensorKV
from engine.row_kv import RowKV

CPU = torch.device("cpu")
IMPLEMENTATIONS = ["reference", "native", "cpu"]
HEADS, KV_HEADS, DIM, LAYERS = 6, 2, 16, 2


def shape_of(dtype=torch.float32):
    return KVShape(LAYERS, KV_HEADS, DIM, dtype, CPU)


def implementation(name, dtype=torch.float32):
    if name == "native" and native.kernels(dtype) is None:
        pytest.skip("no C++ compiler on this machine")
    return choose(name, CPU, dtype)


def kv(tokens, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    size = (LAYERS, KV_HEADS, tokens, DIM)
    return TensorKV(*(torch.randn(size, generator=generator).to(dtype) for _ in range(2)))


def row(spans, filled=0, dtype=torch.float32, seed=0, most=300):
    """A row behind spans with `filled` own tokens already in place."""
    new = RowKV(shape_of(dtype), spans, most)
    new.reserve(filled)
    for i, buffer in enumerate(new.own):
        other = kv(buffer.tokens, dtype, 1000 * seed + i)
        buffer.k.copy_(other.k)
        buffer.v.copy_(other.v)
    new.filled = filled
    return new


def new_tokens(n, dtype=torch.float32):
    generator = torch.Generator().manual_seed(n)
    sizes = [(n, HEADS, DIM), (n, KV_HEADS, DIM), (n, KV_HEADS, DIM)]
    return [torch.randn(size, generator=generator).to(dtype) for size in sizes]


def expected(rows, scoring, layer, query):
    """Softmax over each query's own keys, one query at a time, in float64."""
    out, at = [], 0
    for one, q in rows:
        pieces = one.seen(q)
        k = torch.cat([piece.k[layer] for piece in pieces], dim=1).double()
        v = torch.cat([piece.v[layer] for piece in pieces], dim=1).double()
        for i in range(q):
            seen = one.length + i + 1
            low = max(seen - scoring.window, 0) if scoring.window else 0
            heads = query[at].double().view(KV_HEADS, -1, DIM)
            scores = heads @ k[:, low:seen].transpose(1, 2) * scoring.scale
            if scoring.softcap:
                scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
            if scoring.sinks is not None:
                sink = scoring.sinks.double().view(KV_HEADS, -1, 1)
                weights = torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]
            else:
                weights = scores.softmax(-1)
            out.append((weights @ v[:, low:seen]).reshape(HEADS, DIM))
            at += 1
    return torch.stack(out)


def ragged(dtype=torch.float32):
    """Three levels, GQA, an empty suffix, a row of its own, several own buffers, and one that prefills 5 tokens."""
    root, sub, leaf, other = kv(70, dtype, 1), kv(9, dtype, 2), kv(33, dtype, 3), kv(21, dtype, 4)
    return [
        (row([root, sub, leaf], 0, dtype), 1),
        (row([root, sub, leaf], 7, dtype, 5), 1),
        (row([root, sub], 130, dtype, 6), 1),
        (row([root], 3, dtype, 7), 1),
        (row([root], 62, dtype, 8), 5),
        (row([other], 0, dtype, 9), 40),
        (row([], 0, dtype, 10), 3),
    ]


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "scoring",
    [
        Scoring(0.25),
        Scoring(0.25, window=20),
        Scoring(0.25, softcap=2.0),
        Scoring(0.25, sinks=torch.linspace(-1, 1, HEADS)),
    ],
    ids=["plain", "window", "softcap", "sinks"],
)
def test_every_implementation_gives_the_softmax_of_its_keys(name, scoring):
    rows = ragged()
    batch = Batch(rows, implementation(name))
    query, key, value = new_tokens(batch.tokens)
    out = batch.attend(1, query, key, value, scoring)
    torch.testing.assert_close(out.double(), expected(rows, scoring, 1, query), atol=1e-5, rtol=0)
    kept = torch.cat([piece.k[1] for one, q in rows for piece in one.pieces(one.length, one.length + q)], dim=1)
    assert torch.equal(kept, key.transpose(0, 1))


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_bfloat16_is_within_its_rounding(name):
    rows = ragged(torch.bfloat16)
    batch = Batch(rows, implementation(name, torch.bfloat16))
    tokens = new_tokens(batch.tokens, torch.bfloat16)
    out = batch.attend(0, *tokens, Scoring(0.25))
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), expected(rows, Scoring(0.25), 0, tokens[0]), atol=2e-2, rtol=0)


@pytest.mark.parametrize("dim", [16, 48, 64, 80, 128])
def test_the_own_kernel_serves_head_dimensions_in_whole_vectors(dim):
    shape = KVShape(1, 1, dim, torch.float32, CPU)
    results = []
    for name in ("native", "reference"):
        torch.manual_seed(0)
        one = RowKV(shape, [], 200)
        batch = Batch([(one, 130)], implementation(name))
        results.append(batch.attend(0, torch.randn(130, 5, dim), *torch.randn(2, 130, 1, dim), Scoring(dim**-0.5)))
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)


def test_a_span_is_read_once_for_the_neighbours_that_share_it():
    rows = ragged()
    jobs = Batch(rows, implementation("reference")).jobs
    shared = [(job.start, job.span.tokens, job.first, job.last) for job in jobs if job.span.tokens in (70, 9, 33, 21)]
    assert shared == [(0, 70, 0, 9), (0, 21, 9, 49), (70, 9, 0, 3), (79, 33, 0, 2)]
    assert all(job.last - job.first == 1 for job in jobs if job.start >= 112 and not job.crossing)


def test_flash_computes_the_spans_of_single_rows_side_by_side():
    batch = Batch(ragged(), implementation("cpu"))
    waves = _waves(batch)
    assert [(w[0].first, w[0].last, w[0].n) for w in waves[:3]] == [(0, 9, 70), (0, 3, 9), (0, 2, 33)]
    for wave in waves:
        tokens = [t for piece in wave for t in range(piece.first, piece.last)]
        assert len(tokens) == len(set(tokens)) and len({piece.causal for piece in wave}) == 1
    assert sum(len(wave) for wave in waves) > len(waves) <= 8


def test_rows_from_before_and_after_a_split_share_what_they_have_in_common():
    whole = kv(50)
    old, new = row([whole], 2), row([whole.cut(0, 30), whole.cut(30, 40)], 4)
    jobs = Batch([(old, 1), (new, 1)], implementation("reference")).jobs
    assert [(job.start, job.span.tokens, job.first, job.last) for job in jobs[:3]] == [
        (0, 30, 0, 2),
        (30, 10, 0, 2),
        (40, 10, 0, 1),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_own_kernels_bits_depend_on_neither_the_batch_nor_the_cuts(dtype):
    way = implementation("native", dtype)
    root, hints = kv(150, dtype, 1), [kv(20 + i, dtype, 20 + i) for i in range(9)]
    together = Batch([(row([root, hint], 5, dtype, i), 1) for i, hint in enumerate(hints)], way)
    query, key, value = new_tokens(together.tokens, dtype)
    out = together.attend(0, query, key, value, Scoring(0.25))
    for i, hint in enumerate(hints):
        for cut in ([root, hint], [root.cut(0, 77), root.cut(77, 150), hint.cut(0, 3), hint.cut(3, hint.tokens)]):
            alone = Batch([(row(cut, 5, dtype, i), 1)], way)
            tokens = [t[i : i + 1] for t in (query, key, value)]
            assert torch.equal(alone.attend(0, *tokens, Scoring(0.25))[0], out[i])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_prefilled_and_decoded_tokens_have_the_same_bits(dtype):
    way = implementation("native", dtype)
    query, key, value = new_tokens(140, dtype)
    whole = Batch([(RowKV(shape_of(dtype), [], 140, chunk=140), 140)], way).attend(0, query, key, value, Scoring(0.25))
    one = RowKV(shape_of(dtype), [], 140)
    for i in range(140):
        batch = Batch([(one, 1)], way)
        step = batch.attend(0, *(t[i : i + 1] for t in (query, key, value)), Scoring(0.25))
        batch.advance()
        assert torch.equal(step[0], whole[i])


def test_threads_give_the_same_bits():
    rows = ragged()
    way = implementation("native")
    tokens = new_tokens(sum(q for _, q in rows))
    alone = Batch(rows, way).attend(0, *tokens, Scoring(0.25))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert torch.equal(Batch(rows, way).attend(0, *tokens, Scoring(0.25)), alone)
    finally:
        torch.set_num_threads(before)


def test_own_buffers_come_in_chunks_and_the_last_is_only_as_large_as_it_may_get():
    one = RowKV(shape_of(), [kv(10)], 150)
    sizes = []
    for _ in range(150):
        one.reserve(1)
        one.filled += 1
        sizes.append(one.room)
    assert sorted(set(sizes)) == [64, 128, 150]
    assert (one.start, one.length, one.nbytes) == (10, 160, 150 * one.shape.bytes_per_token)
    assert one.payload(20, 30).k.data_ptr() == one.own[0].cut(10, 20).k.data_ptr()
    assert one.payload(60, 140).tokens == 80


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        ("fast", torch.float32, "unknown attention 'fast'; choices: auto, reference, native, cpu, cuda"),
        ("cuda", torch.float32, "attention 'cuda' does not serve torch.float32 on cpu"),
        ("native", torch.float16, "attention 'native' does not serve torch.float16 on cpu"),
    ],
)
def test_a_choice_that_cannot_serve_is_refused(name, dtype, message):
    with pytest.raises(ValueError, match=message):
        choose(name, CPU, dtype)


def test_without_a_compiler_torch_serves_and_the_log_says_so(monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("RKSC_CACHE", str(tmp_path))
    monkeypatch.delenv("RKSC_NATIVE", raising=False)
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    native.kernels.cache_clear()
    native._library.cache_clear()
    try:
        assert choose("auto", CPU, torch.float32).name == "reference"
        assert "no C++ compiler among g++, clang++, c++" in caplog.text
    finally:
        native.kernels.cache_clear()
        native._library.cache_clear()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_flash_gives_the_softmax_of_its_keys():
    device = torch.device("cuda")
    shape = KVShape(1, 2, 64, torch.bfloat16, device)
    root = TensorKV(*torch.randn(2, 1, 2, 300, 64, device=device).bfloat16())
    outs = []
    tokens = [torch.randn(43, heads, 64, device=device).bfloat16() for heads in (8, 2, 2)]
    for name in ("cuda", "reference"):
        rows = [(RowKV(shape, [root], 50), 1), (RowKV(shape, [root], 50), 2), (RowKV(shape, [], 50), 40)]
        outs.append(Batch(rows, choose(name, device, torch.bfloat16)).attend(0, *tokens, Scoring(0.125)))
    torch.testing.assert_close(*(out.float() for out in outs), atol=2e-2, rtol=2e-2)
