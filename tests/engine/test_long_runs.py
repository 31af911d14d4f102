"""Memory over long runs: nothing piles up, and what is held grows with the nodes of the search."""

import gc
import itertools
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from engine.base import BranchRequest, StepRule, path_keys, stream_key
from engine.local import LocalEngine

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def loaded(tiny_llama: Path) -> LocalEngine:
    return LocalEngine.load(str(tiny_llama), dtype="float32", device="cpu")


def rss_bytes():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def expand(engine, text, n=4, tokens=8):
    path = (tuple(engine.codec.encode(text)),)
    request = BranchRequest("x", path, tuple(stream_key(text, i) for i in range(n)), StepRule(max_tokens=tokens))
    return path, engine.expand([request])[0].branches


@pytest.mark.parametrize("way", ["released", "bounded"])
def test_a_thousand_expansions_leave_memory_as_it_was(loaded, way):
    """Problems come and go: their trees are released, or evicted within a budget, with and without a host."""
    budget = 1500 * loaded.shape.bytes_per_token if way == "bounded" else None
    engine = LocalEngine(
        loaded.model, loaded.codec, "tiny", kv_budget_bytes=budget, host_budget_bytes=(budget or 0) // 2
    )
    before = held = 0
    for number in range(1000):
        path, branches = expand(engine, f"Problem {number} of very many, to be forgotten.")
        assert len(branches) == 4
        if way == "released":
            engine.release([path_keys("tiny", path)[0]])
        if number == 200:
            before, held = rss_bytes(), engine.tree.device.nbytes + engine.tree.host.nbytes
    after = rss_bytes()
    assert after <= before * 1.05
    assert engine.tree.device.nbytes + engine.tree.host.nbytes <= max(held * 1.05, 64 * engine.shape.bytes_per_token)
    assert len(engine.tree.events()) <= 4 * len(list(engine.tree.segments())) + 100
    assert len(engine.tree._dropped._lengths) <= 1 << 14
    engine.check_integrity()


def test_memory_is_linear_in_the_nodes_of_256_branches_of_40_steps(loaded):
    """Every step of every branch adds its three tokens once, whatever lies above it."""
    engine = LocalEngine(loaded.model, loaded.codec, "tiny")
    prompt = tuple(engine.codec.encode("The common prompt of all of them. "))
    paths = [(prompt, tuple(engine.codec.encode(f"branch {i:3d} "))) for i in range(256)]
    sizes = []
    for step in range(40):
        asks = [BranchRequest(str(i), path, (stream_key(i, step),), StepRule(3)) for i, path in enumerate(paths)]
        results = engine.expand(asks)
        assert step == 0 or all(result.usage.prefilled == 0 for result in results)
        paths = [(*path, r.branches[0].token_ids) for path, r in zip(paths, results, strict=True)]
        sizes.append(engine.tree.device.nbytes)
    steps = [later - earlier for earlier, later in itertools.pairwise(sizes)]
    assert max(steps) <= 256 * 3 * engine.shape.bytes_per_token
    assert sum(steps[-10:]) <= 1.05 * sum(steps[:10])
    assert engine.tree.num_bytes == engine.tree.num_tokens * engine.shape.bytes_per_token
    engine.check_integrity()
