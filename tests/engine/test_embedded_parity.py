"""The embedded model: greedy tokens and logits through three levels of the tree equal those of stock transformers."""

import pytest

torch = pytest.importorskip("torch")

from engine.base import BranchRequest, StepRule
from engine.loading import load_model
from engine.local import LocalEngine
from engine.models import ModelNotFoundError, resolve
from engine.row_kv import RowKV

try:
    SOURCE = resolve("embedded")
except ModelNotFoundError:
    pytest.skip("the embedded model is not installed", allow_module_level=True)

pytestmark = pytest.mark.slow
PROMPT = (
    "A farmer has 17 sheep and buys 5 more. Then all but 9 run away. How many sheep are left? Think step by step. " * 8
)


@pytest.fixture(scope="module")
def engine() -> LocalEngine:
    return LocalEngine.load("embedded", device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def stock():
    return load_model(SOURCE, torch.device("cpu"), torch.float32, "sdpa")


@pytest.fixture(scope="module")
def truth():
    return load_model(SOURCE, torch.device("cpu"), torch.float64, "sdpa")


def logits_of(stock, tokens):
    with torch.inference_mode():
        return stock(torch.tensor([list(tokens)]), use_cache=False).logits[0]


def expand(engine, paths, new):
    asks = [BranchRequest(str(i), path, (0,), StepRule(max_tokens=new), 0.0) for i, path in enumerate(paths)]
    return [result.branches[0].token_ids for result in engine.expand(asks)]


def test_greedy_tokens_equal_at_three_levels_also_after_evict_offload_and_import(engine, stock):
    engine.codec.eos_ids = frozenset()
    prompt = tuple(engine.codec.encode(PROMPT))
    hints = [tuple(engine.codec.encode(text)) for text in (" First,", " Let me see:", " So we count")]
    level_1 = [(prompt, hint) for hint in hints]
    drawn_1 = expand(engine, level_1, 12)
    level_2 = [(*path, drawn, hint) for path, drawn in zip(level_1, drawn_1, strict=True) for hint in hints]
    drawn_2 = expand(engine, level_2, 10)
    for path, drawn in [*zip(level_1, drawn_1, strict=True), *zip(level_2, drawn_2, strict=True)]:
        tokens = [token for segment in path for token in segment]
        best = logits_of(stock, [*tokens, *drawn])[len(tokens) - 1 : -1].argmax(-1)
        assert tuple(best.tolist()) == drawn
    engine.tree.budget_bytes = 1
    engine.tree.enforce_budget()
    engine.tree.budget_bytes = None
    assert engine.tree.num_tokens == 0
    assert expand(engine, level_2, 10) == drawn_2


def error_of(logits, exact) -> float:
    return float((logits.double() - exact).abs().max())


def test_logits_behind_ragged_rows_err_no_more_than_those_of_the_full_prompt(engine, stock, truth):
    """Against float64, at most twice the largest error that stock transformers makes in float32 along the longest of
    these prompts. The difference of two float32 results would be no measure: each errs by about 5e-5 of |24|, in sums
    whose order is the machine's."""
    prompt = engine.codec.encode(PROMPT)
    root = RowKV(engine.shape, [], len(prompt))
    engine.forward([(root, prompt, False)])
    spans = root.seen(0)
    suffixes = [[], prompt[5:12], prompt[40:41], prompt[10:90]]
    rows = [RowKV(engine.shape, [*spans], 200) for _ in suffixes]
    for row, suffix in zip(rows, suffixes, strict=True):
        if suffix:
            engine.forward([(row, suffix, False)])
    found = engine.forward([(row, [7], True) for row in rows])
    full = [[*prompt, *suffix, 7] for suffix in suffixes]
    allowed = 2 * error_of(logits_of(stock, full[-1]), logits_of(truth, full[-1]))
    assert allowed < 1e-3
    for tokens, logits in zip(full, found, strict=True):
        assert error_of(logits, logits_of(truth, tokens)[-1]) <= allowed
