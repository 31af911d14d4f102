"""Which position encodings `shifted` serves, and that scaled ones are moved right."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from engine.asks.options import Asks
from engine.asks.rope import rotated, unsupported
from engine.asks.tiers import check
from engine.base import flat
from engine.local import LocalEngine, load_engine
from engine.plain import PlainEngine
from engine.row_kv import RowKV
from tests.engine.asks.conftest import BODY
from tests.tiny import byte_tokenizer, save_tiny_llama

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
    "rope_theta": 10000.0,
}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}


@pytest.mark.parametrize("rope", [YARN, LLAMA3, LINEAR], ids=lambda rope: rope["rope_type"])
def test_scaled_rope_is_moved_by_its_unscaled_cos_and_sin(tmp_path, rope):
    engine = LocalEngine.load(str(save_tiny_llama(tmp_path, rope_parameters=rope)), dtype="float32", device="cpu")
    assert unsupported(engine.model) is None
    if rope is YARN:
        assert engine.model.rotary.attention_scaling != 1.0
    tokens = list(flat((engine.codec.encode(BODY),)))
    keys = []
    for before in (2, 90):
        row = RowKV(engine.shape, [], before + len(tokens))
        engine.forward([(row, [5] * before + tokens, False)])
        keys.append(row.payload(before, before + len(tokens)).k[0])
    assert torch.allclose(rotated(keys[0], 88, engine.model.rotary.inv_freq), keys[1], atol=2e-5)


def test_dynamic_ntk_is_refused_by_name(tmp_path):
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    folder = save_tiny_llama(tmp_path, rope_parameters=rope)
    with pytest.raises(ValueError, match=r"'shifted' does not serve this model: dynamic NTK .*; served: default"):
        load_engine(str(folder), dtype="float32", device="cpu", asks=Asks(shifted=True))
    assert isinstance(load_engine(str(folder), dtype="float32", device="cpu"), PlainEngine)


def test_learned_positions_are_refused_by_name(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = byte_tokenizer()
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=2, n_positions=256)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"'shifted' does not serve this model: learned positions"):
        load_engine(str(tmp_path), dtype="float32", device="cpu", asks=Asks(shifted=True))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "bloom"}, "ALiBi"),
        ({"model_type": "falcon", "alibi": True}, "ALiBi"),
        ({"model_type": "llama", "rope_parameters": {"rope_type": "longrope"}}, "longrope"),
        ({"model_type": "llama", "rope_parameters": {"rope_type": "new"}}, "RoPE type 'new' is not known"),
    ],
)
def test_other_encodings_are_refused_by_name(config, reason):
    text = SimpleNamespace(**{"alibi": False, "rope_parameters": None, "rope_theta": None, **config})
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text))
    with pytest.raises(ValueError, match=reason):
        check(Asks(shifted=True), model)


def test_sliding_windows_are_refused(tmp_path):
    from transformers import MistralConfig, MistralForCausalLM

    tokenizer = byte_tokenizer()
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = MistralConfig(vocab_size=len(tokenizer), num_key_value_heads=2, sliding_window=32, **sizes)
    MistralForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="sliding window attention"):
        LocalEngine.load(str(tmp_path), dtype="float32", device="cpu", asks=Asks(shifted=True))
