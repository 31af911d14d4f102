"""CGEE level 2: exact against the stock model's own layers, per row, and without a trace in the KV tree."""

import math
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from engine import layer_exit
from engine.base import BranchRequest, LayerExit, ScoreQuery, StepRule, flat, stream_key
from engine.labels import log_odds
from engine.local import LocalEngine
from tests.tiny import save_tiny_llama

LAYERS = 8
NEVER = (LayerExit("margin", math.inf), LayerExit("paper", 0.0))
EARLY = (
    LayerExit("margin", 1.9, first=1, every=1, agree=2),
    LayerExit("margin", 1.5, first=2, every=2, agree=2),
    LayerExit("paper", 4.4, 0.1),
)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def loaded(request, tmp_path_factory: pytest.TempPathFactory) -> LocalEngine:
    folder = tmp_path_factory.mktemp("deep") / "llama"
    save_tiny_llama(folder, num_hidden_layers=LAYERS, tie_word_embeddings=request.param)
    return LocalEngine.load(str(folder), dtype="float32", device="cpu")


@pytest.fixture
def engine(loaded: LocalEngine):
    fresh = LocalEngine(loaded.model, loaded.codec, "tiny")
    yield fresh
    fresh.check_integrity()
    assert all(segment.readers == 0 for segment in fresh.tree.segments())


def another(engine: LocalEngine, **options) -> LocalEngine:
    return LocalEngine(engine.model, engine.codec, "tiny", **options)


@pytest.fixture
def queries(engine: LocalEngine) -> list[ScoreQuery]:
    """Questions of several lengths, with other last tokens each, behind ragged branches, whose KV is held."""
    prompt = tuple(engine.codec.encode("What is right, and what is wrong with it? " * 3))
    paths = []
    for i in range(7):
        ask = BranchRequest(str(i), (prompt,), (stream_key("row", i),), StepRule(max_tokens=4 + 3 * i))
        paths.append((prompt, engine.expand([ask])[0].branches[0].token_ids))
    asked = (
        "Right?",
        "Is all of the above correct:",
        "No or yes",
        "Tell me!",
        "So be it.",
        "Is it so, or not",
        "x" * 40,
    )
    return [ScoreQuery(str(i), path, text) for i, (path, text) in enumerate(zip(paths, asked, strict=True))]


def with_rule(queries: list[ScoreQuery], rule: LayerExit | None) -> list[ScoreQuery]:
    return [replace(query, layer_exit=rule) for query in queries]


def stock_layers(engine: LocalEngine, query: ScoreQuery):
    """Logits [L, V] that the stock model's final norm and unembedding give after each of its layers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(engine.model.config._name_or_path, dtype=torch.float32)
    seen = []
    for layer in model.model.layers:
        layer.register_forward_hook(lambda module, args, out: seen.append(out[0] if isinstance(out, tuple) else out))
    tokens = [*flat(query.path), *engine.codec.encode(query.question)]
    with torch.inference_mode():
        model(torch.tensor([tokens]), use_cache=False)
        states = torch.stack([state.reshape(-1, state.shape[-1])[-1] for state in seen])
        return model.lm_head(model.model.norm(states))


def expected(engine: LocalEngine, query: ScoreQuery, rule: LayerExit) -> tuple[int, float]:
    """(last layer, P(yes) there) by the rule as it is written in RKSC, on the stock model."""
    logits = stock_layers(engine, query)
    odds = log_odds(logits[:, list(engine.labels.yes)], logits[:, list(engine.labels.no)])
    p = torch.softmax(logits.double(), -1)
    entropy = -(p * p.log()).sum(-1)
    for layer in range(rule.begin(LAYERS), LAYERS):
        i = layer - 1
        if rule.mode == "paper":
            steady = i > 0 and abs(entropy[i] - entropy[i - 1]) < rule.epsilon
            stop = bool(entropy[i] < rule.limit and steady)
        else:
            checks = list(range(rule.begin(LAYERS) - 1, i + 1, rule.every))
            last = odds[checks[-rule.agree :]].sign().tolist()
            stop = (
                checks[-1] == i and bool(abs(odds[i]) > rule.limit) and len(last) == rule.agree == last.count(last[0])
            )
        if stop:
            return layer, float(torch.sigmoid(odds[i]))
    return LAYERS, float(torch.sigmoid(odds[-1]))


@pytest.mark.parametrize("rule", NEVER, ids=str)
def test_a_threshold_that_is_never_met_gives_the_bits_of_the_plain_pass(engine, queries, rule):
    plain = engine.score(queries)
    found = engine.score(with_rule(queries, rule))
    assert [r.p_yes for r in found] == [r.p_yes for r in plain]
    assert {(r.usage.exits, r.usage.layer_rows, r.usage.layer_rows_full) for r in found} == {(0, LAYERS, LAYERS)}


@pytest.mark.parametrize("rule", EARLY, ids=str)
def test_every_row_ends_where_the_rule_says_on_the_stock_models_layers(engine, queries, rule):
    wanted = [expected(engine, query, rule) for query in queries]
    assert len({layer for layer, _ in wanted}) > 1, "rows that end at different layers are what is tested here"
    assert min(layer for layer, _ in wanted) < LAYERS
    found = engine.score(with_rule(queries, rule))
    assert [r.usage.layer_rows for r in found] == [layer for layer, _ in wanted]
    assert [r.usage.exits for r in found] == [int(layer < LAYERS) for layer, _ in wanted]
    for result, (_, p_yes) in zip(found, wanted, strict=True):
        assert result.p_yes == pytest.approx(p_yes, abs=1e-4)


@pytest.mark.parametrize("rule", EARLY, ids=str)
def test_a_row_ends_alike_alone_and_in_a_batch_that_shrinks(engine, queries, rule):
    together = engine.score(with_rule(queries, rule))
    for query, result in zip(with_rule(queries, rule), together, strict=True):
        alone = another(engine).score([query])[0]
        assert (alone.p_yes, alone.usage.layer_rows) == (result.p_yes, result.usage.layer_rows)


@pytest.mark.parametrize("rule", EARLY, ids=str)
def test_rows_that_ended_leave_the_batch(engine, queries, rule, monkeypatch):
    """Tokens of each layer's input: those of the rows that were not done before it (never less than least_rows)."""
    sizes, forward = [], type(engine.model.layers[0]).forward

    def watched(self, x, *rest):
        sizes.append(len(x))
        return forward(self, x, *rest)

    found = engine.score(with_rule(queries, rule))
    monkeypatch.setattr(type(engine.model.layers[0]), "forward", watched)
    assert [r.p_yes for r in engine.score(with_rule(queries, rule))] == [r.p_yes for r in found]
    live = [sum(r.usage.scored for r in found if r.usage.layer_rows > layer) for layer in range(LAYERS)]
    least = engine.forward.least_rows
    assert sizes == [max(tokens, least) for tokens in live if tokens]


@pytest.mark.parametrize("rule", EARLY, ids=str)
def test_nothing_of_a_question_or_a_paths_last_token_is_held(engine, queries, rule):
    held, keys = engine.tree.num_tokens, {event.key for event in engine.snapshot()}
    engine.score(with_rule(queries, rule))
    assert engine.tree.num_tokens == held
    assert {event.key for event in engine.snapshot()} == keys
    for query in queries:
        tokens = (*flat(query.path), *engine.codec.encode(query.question))
        assert engine.tree.held(tokens) == len(flat(query.path)) - 1
    kids = [BranchRequest(q.id, q.path, (1, 2), StepRule(max_tokens=6)) for q in queries]
    assert [r.branches for r in engine.expand(kids)] == [r.branches for r in another(engine).expand(kids)]


def test_rules_may_differ_within_a_call_and_the_engine_counts_all_layers(engine, queries):
    rules = [None, *EARLY, *NEVER, None]
    asked = [replace(query, layer_exit=rule) for query, rule in zip(queries, rules, strict=True)]
    found = engine.score(asked)
    assert [r.id for r in found] == [q.id for q in queries]
    for query, result in zip(asked, found, strict=True):
        alone = another(engine).score([query])[0]
        assert (alone.p_yes, alone.usage.layer_rows) == (result.p_yes, result.usage.layer_rows)
    stats = engine.stats()
    assert stats["layer_rows"] == sum(r.usage.layer_rows for r in found) < stats["layer_rows_full"]
    assert stats["layer_rows_full"] == len(queries) * LAYERS
    assert stats["exits"] == sum(r.usage.exits for r in found) > 0


def test_exits_work_within_a_byte_budget(engine, queries):
    rule = EARLY[0]
    budget = 260 * engine.shape.bytes_per_token
    small = another(engine, kv_budget_bytes=budget)
    for query, result in zip(queries, engine.score(with_rule(queries, rule)), strict=True):
        assert small.score([replace(query, layer_exit=rule)])[0].p_yes == result.p_yes
    small.check_integrity()


def test_label_rows_are_those_of_the_models_own_unembedding(engine):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(engine.model.config._name_or_path, dtype=torch.float32)
    ids = [3, 0, len(model.lm_head.weight) - 1]
    found = engine.model.unembedding(ids)
    assert torch.equal(found, model.lm_head.weight[ids])
    assert engine.model.unembedding(ids) is found


def test_entropy_is_in_nats_and_never_negative():
    assert float(layer_exit.entropy(torch.zeros(1, 8))) == pytest.approx(math.log(8))
    assert float(layer_exit.entropy(torch.tensor([[100.0, 0.0, 0.0]]))) == pytest.approx(0.0, abs=1e-9)
    assert float(layer_exit.entropy(torch.tensor([[100.0, 0.0, 0.0]]))) >= 0.0


def test_a_model_without_an_own_loop_is_read_to_its_last_layer_and_says_so(loaded, queries):
    from transformers import AutoModelForCausalLM

    from engine import attention

    model = AutoModelForCausalLM.from_pretrained(loaded.model.config._name_or_path, attn_implementation="eager")
    attention.register()
    model.set_attn_implementation(attention.NAME)
    stock = LocalEngine(model.eval().requires_grad_(False), loaded.codec, "stock")
    assert "layer_exit" in loaded.capabilities
    assert "layer_exit" not in stock.capabilities
    full, asked = stock.score(queries), stock.score(with_rule(queries, EARLY[0]))
    assert [r.p_yes for r in asked] == [r.p_yes for r in full]
    assert {(r.usage.exits, r.usage.layer_rows, r.usage.layer_rows_full) for r in asked} == {(0, LAYERS, LAYERS)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "entropy"}, "no mode 'entropy'; choices: paper, margin"),
        ({"mode": "margin", "threshold": -1.0}, "threshold is a number of at least 0, got -1.0"),
        ({"mode": "paper", "threshold": math.nan}, "threshold is a number of at least 0, got nan"),
        ({"mode": "paper", "epsilon": -0.5}, "epsilon is a number of at least 0, got -0.5"),
        ({"mode": "margin", "agree": 0}, "agree is a whole number of at least 1, got 0"),
        ({"mode": "margin", "first": 0}, "first is a whole number of at least 1, got 0"),
    ],
)
def test_rules_that_make_no_sense_are_refused_by_name(options, words):
    with pytest.raises(ValueError) as raised:
        LayerExit(**options)
    assert words in str(raised.value)


def test_defaults_are_the_papers():
    rule = LayerExit("paper")
    assert (rule.limit, rule.epsilon, rule.begin(30)) == (8.0, 3.0, 2)
    assert LayerExit("margin").begin(30) == 15
