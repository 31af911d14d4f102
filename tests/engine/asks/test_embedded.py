"""The embedded model: what `shifted` costs on real text, and what the paper's tau would share."""

import argparse
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from bench.shifted import DATA, measure
from engine.asks.options import Asks, paper_tau
from engine.base import BranchRequest, StepRule
from engine.local import LocalEngine
from engine.models import ModelNotFoundError, resolve
from search.prompts import ChatPrompt
from search.types import Problem

try:
    resolve("embedded")
except ModelNotFoundError:
    pytest.skip("the embedded model is not installed", allow_module_level=True)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def loaded() -> LocalEngine:
    return LocalEngine.load("embedded", device="cpu", dtype="float32")


def two_problems(engine: LocalEngine) -> list[BranchRequest]:
    """Two different problems in one template, as the engine gets them by default."""
    texts = [json.loads(line)["question"] for line in Path(DATA).read_text(encoding="utf-8").splitlines()[:2]]
    rendered = [engine.codec.render(ChatPrompt().messages(Problem(text))) for text in texts]
    paths = [(tuple(engine.codec.encode(text)),) for text in rendered]
    return [BranchRequest(str(i), path, (0,), StepRule(max_tokens=4), 0.0) for i, path in enumerate(paths)]


def test_mean_kl_of_repaired_chunks_stays_below_the_bound():
    options = argparse.Namespace(model="embedded", data=DATA, problems=2, tokens=8, threads=1)
    usual = Asks().first, Asks().ratio
    found = measure(options, lambda text: None, [(0, 0.0), usual, (8, 1.0)])
    rows = {(row["first"], row["ratio"]): row for row in found}
    default = rows[usual]
    assert default["prompts"] >= 6 and default["moved"] >= 64 * default["prompts"]
    assert default["kl_mean"] < 0.015
    assert default["computed"] < 0.5 * default["prompt_tokens"]
    assert rows[0, 0.0]["kl_mean"] > default["kl_mean"] > rows[8, 1.0]["kl_mean"]
    assert rows[8, 1.0]["kl_mean"] < 1e-6 and rows[8, 1.0]["top1_agreement"] == 1.0


def test_the_papers_tau_would_share_kv_between_two_different_problems(loaded):
    asks = Asks(semantic=True, tau="paper", audit=1.0)
    engine = LocalEngine(loaded.model, loaded.codec, "paper", asks=asks, name="embedded")
    for request in two_problems(loaded):
        engine.expand([request])
    stats = engine.stats()
    assert stats["semantic_sigma"] > paper_tau("embedded")
    assert stats["semantic_sigma"] > paper_tau("Qwen2.5-7B") > paper_tau("embedded")
    assert stats["semantic_substituted"] == 1
    assert stats["semantic_kl_mean"] > 0.02


def test_the_defaults_never_share_kv_between_two_different_problems(loaded):
    first, second = two_problems(loaded)
    alone = LocalEngine(loaded.model, loaded.codec, "alone").expand([second])[0]
    engine = LocalEngine(loaded.model, loaded.codec, "default", asks=Asks())
    engine.expand([first])
    after = engine.expand([second])[0]
    assert after.branches == alone.branches
    assert set(after.usage.reused) <= {"exact", "layout"}
    common = next(i for i, (a, b) in enumerate(zip(first.path[0], second.path[0], strict=False)) if a != b)
    assert sum(after.usage.reused.values()) == common
