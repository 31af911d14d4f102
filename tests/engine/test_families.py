"""Every supported family gives its own logits through the tree; others run on the plain path and stay right."""

import logging
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from engine import attention
from engine.base import BranchRequest, LayerExit, ScoreQuery, StepRule, stream_key
from engine.fused import FusedModel
from engine.loading import load_model
from engine.local import LocalEngine, load_engine
from engine.plain import PlainEngine
from engine.selftest import kv_shape, unsupported
from engine.tokenizer import ByteCodec
from tests.tiny import byte_tokenizer

SMALL = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "eos_token_id": 256,
    "bos_token_id": 0,
    "pad_token_id": 0,
}
NO_GQA = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
GPT2 = {"vocab_size": 300, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512, "eos_token_id": 256}
WINDOW = {"sliding_window": 16, "head_dim": 16}
ROPE = {"rope_theta": 10000.0, "original_max_position_embeddings": 64}
LONGROPE = {**ROPE, "rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "factor": 8.0}
TREE = {
    "llama": ("LlamaConfig", SMALL),
    "qwen2": ("Qwen2Config", SMALL),
    "qwen3": ("Qwen3Config", {**SMALL, "head_dim": 16}),
    "mistral": ("MistralConfig", {**SMALL, "sliding_window": None}),
    "mistral_window": ("MistralConfig", {**SMALL, "sliding_window": 20}),
    "phi": ("PhiConfig", {**SMALL, "num_key_value_heads": 4}),
    "phi3": ("Phi3Config", SMALL),
    "gemma": ("GemmaConfig", {**SMALL, "head_dim": 16}),
    "gemma2_softcap_window": ("Gemma2Config", {**SMALL, **WINDOW, "attn_logit_softcapping": 2.0}),
    "gemma3_window": ("Gemma3TextConfig", {**SMALL, **WINDOW, "layer_types": ["sliding_attention", "full_attention"]}),
    "gpt_oss_sinks": ("GptOssConfig", {**SMALL, **WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "gpt2": ("GPT2Config", {**GPT2, "bos_token_id": 0}),
    "gpt_neox": ("GPTNeoXConfig", NO_GQA),
}
PLAIN = {
    "mamba": ("MambaConfig", {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2, "eos_token_id": 256}),
    "falcon_alibi": (
        "FalconConfig",
        {**GPT2, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "alibi": True},
    ),
    "llama_longrope": ("LlamaConfig", {**SMALL, "rope_parameters": LONGROPE}),
    "llama_dynamic": ("LlamaConfig", {**SMALL, "rope_parameters": {**ROPE, "rope_type": "dynamic", "factor": 2.0}}),
    "llama4_chunks": (
        "Llama4TextConfig",
        {**SMALL, "head_dim": 16, "intermediate_size_mlp": 128, "num_local_experts": 2, "attention_chunk_size": 64},
    ),
}


REFERENCE = attention.choose("reference", torch.device("cpu"), torch.float32)


def build(name: str, table: dict[str, tuple[str, dict[str, object]]]):
    config_class, options = table[name]
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**options)
    attention.register()
    return transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)


@pytest.mark.parametrize("implementation", ["auto", "reference", "cpu"])
@pytest.mark.parametrize("name", sorted(TREE))
def test_logprobs_through_the_tree_equal_the_models_own(name: str, implementation: str):
    model = build(name, TREE)
    assert unsupported(model, kv_shape(model), REFERENCE)[0] is None
    engine = LocalEngine(model, ByteCodec(512), name, attention=implementation)
    prompt = tuple(range(20, 60))
    rule = StepRule(max_tokens=6)
    first = engine.expand([BranchRequest("a", (prompt,), (1, 2, 3), rule)])[0].branches
    kids = [BranchRequest(str(i), (prompt, b.token_ids), (7, 8), rule) for i, b in enumerate(first)]
    results = engine.expand(kids)
    model.set_attn_implementation("eager")
    for kid, result in zip(kids, results, strict=True):
        path = [*prompt, *kid.path[1]]
        for branch in result.branches:
            with torch.inference_mode():
                logits = model(torch.tensor([[*path, *branch.token_ids]]), use_cache=False).logits[0]
            logprobs = logits[len(path) - 1 : -1].log_softmax(-1)
            expected = logprobs.gather(1, torch.tensor(branch.token_ids)[:, None]).sum()
            assert branch.logprob == pytest.approx(float(expected), abs=1e-4 * len(branch.token_ids))
    engine.tree.check_integrity()


@pytest.mark.parametrize("name", ["llama", "mistral", "mistral_window", "qwen2", "qwen3"])
def test_the_fused_forward_equals_the_stock_model(name: str, tmp_path: Path):
    stock = build(name, TREE)
    stock.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    engine = LocalEngine.load(str(tmp_path), device="cpu", dtype="float32")
    assert isinstance(engine.model, FusedModel)
    prompt = tuple(range(20, 80))
    branches = engine.expand([BranchRequest("a", (prompt,), (1, 2, 3), StepRule(max_tokens=8))])[0].branches
    stock.set_attn_implementation("eager")
    for branch in branches:
        with torch.inference_mode():
            logits = stock(torch.tensor([[*prompt, *branch.token_ids]]), use_cache=False).logits[0]
        logprobs = logits[len(prompt) - 1 : -1].log_softmax(-1)
        expected = logprobs.gather(1, torch.tensor(branch.token_ids)[:, None]).sum()
        assert branch.logprob == pytest.approx(float(expected), abs=1e-4 * len(branch.token_ids))


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_other_models_are_found_out_and_run_on_the_plain_path(name: str, tmp_path: Path, caplog):
    model = build(name, PLAIN)
    assert unsupported(model, kv_shape(model), REFERENCE)[0] is not None
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING):
        engine = load_engine(str(tmp_path), device="cpu", dtype="float32")
    assert isinstance(engine, PlainEngine)
    assert len([r for r in caplog.records if "plain path" in r.message]) == 1
    ask = BranchRequest("a", (tuple(engine.codec.encode("Hello there.")),), (0,), StepRule(max_tokens=5), 0.0)
    result = engine.expand([ask])[0]
    tokens = list(ask.path[0])
    for token in result.branches[0].token_ids:
        with torch.inference_mode():
            assert token == int(engine.model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax())
        tokens.append(token)
    assert result.usage.reused == {"exact": 0}
    score = engine.score([ScoreQuery("s", ask.path, engine.codec.next_turn("Right?"), LayerExit("paper"))])[0]
    assert 0.0 < (score.p_yes or 0.0) < 1.0
    assert (score.usage.exits, score.usage.layer_rows, score.usage.layer_rows_full) == (0, 2, 2)
    streams = tuple(stream_key(i) for i in range(3))
    sampled = engine.expand([BranchRequest("b", ask.path, streams, StepRule(max_tokens=5))])[0].branches
    assert len({branch.token_ids for branch in sampled}) > 1


def test_on_the_plain_path_a_deadline_counts_from_the_call():
    times = iter([0.0, 9.0, 9.5])
    engine = PlainEngine(build("mamba", PLAIN), ByteCodec(512), clock=lambda: next(times))
    ask = BranchRequest("a", ((1, 2, 3),), (1, 2), StepRule(max_tokens=5), deadline_s=5.0)
    branches = engine.expand([ask])[0].branches
    assert [(branch.finish, branch.token_ids) for branch in branches] == [("cancelled", ())] * 2


def test_a_wrong_attention_is_found_out(monkeypatch):
    model = build("llama", TREE)
    monkeypatch.setattr("engine.attention.reference._weights", lambda scores, positions, scoring: scores.softmax(-1))
    assert "differ" in (unsupported(model, kv_shape(model), REFERENCE)[0] or "")


class Quantised(torch.nn.Module):
    """A linear layer without a plain weight, as GPTQ and AWQ have them."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.qweight = torch.nn.Parameter((linear.weight * 4096).round().to(torch.int32), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.qweight.float() / 4096).T


@pytest.mark.parametrize("name", ["self_attn.q_proj", "mlp.down_proj"])
def test_a_model_with_other_linear_layers_is_served_by_its_own_forward(name: str, tmp_path: Path, monkeypatch):
    build("llama", TREE).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)

    def load(*args):
        model = load_model(*args)
        for layer in model.model.layers:
            parent, _, child = name.partition(".")
            part = layer.get_submodule(parent)
            setattr(part, child, Quantised(part.get_submodule(child)))
        return model

    monkeypatch.setattr("engine.local.load_model", load)
    engine = LocalEngine.load(str(tmp_path), device="cpu", dtype="float32")
    assert not isinstance(engine.model, FusedModel)
    ask = BranchRequest("a", (tuple(range(20, 60)),), (1,), StepRule(max_tokens=5), 0.0)
    assert len(engine.expand([ask])[0].branches[0].token_ids) > 0


def test_a_wrong_fused_forward_is_not_used(tmp_path: Path, monkeypatch, caplog):
    build("llama", TREE).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    monkeypatch.setattr("engine.fused._Norm.forward", lambda self, x, more: x)
    engine = LocalEngine.load(str(tmp_path), device="cpu", dtype="float32")
    assert not isinstance(engine.model, FusedModel)
    assert any("fused forward" in record.message for record in caplog.records)
