"""Bytes of KV a token, from configurations alone."""

import json
from pathlib import Path

import pytest

from engine.kv_size import kv_bytes_per_token
from engine.models import ModelNotFoundError, ModelSource, resolve


def folder(tmp_path: Path, **config) -> ModelSource:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return resolve(str(tmp_path))


SHAPE = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}


@pytest.mark.parametrize(
    ("config", "dtype", "size"),
    [
        (SHAPE, "float32", 2 * 2 * 4 * 16 * 4),
        ({**SHAPE, "num_key_value_heads": 2}, "float32", 2 * 2 * 2 * 16 * 4),
        ({**SHAPE, "num_key_value_heads": 2, "head_dim": 32}, "bfloat16", 2 * 2 * 2 * 32 * 2),
        ({"text_config": SHAPE, "vision_config": {}}, "auto", 2 * 2 * 4 * 16 * 4),
        ({"num_hidden_layers": 2}, "float32", None),
    ],
)
def test_of_a_folder(tmp_path, config, dtype, size):
    assert kv_bytes_per_token(folder(tmp_path, **config), dtype) == size


def test_of_the_embedded_model():
    """SmolLM2-135M: 30 layers, 3 key-value heads of 64."""
    try:
        source = resolve("embedded")
    except ModelNotFoundError:
        pytest.skip("the embedded model is not installed")
    assert kv_bytes_per_token(source, "float32") == 2 * 30 * 3 * 64 * 4


def test_of_the_simulated_engine_its_own_books_tell():
    from actors.spec import EngineSpec

    assert EngineSpec(model="simulated").kv_bytes_per_token == 1024


def test_it_is_what_a_loaded_model_holds(tmp_path):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    from engine.selftest import kv_shape
    from tests.tiny import save_tiny_llama

    model = AutoModelForCausalLM.from_pretrained(save_tiny_llama(tmp_path), dtype=torch.float32)
    shape = kv_shape(model)
    assert shape is not None
    held = 2 * shape.layers * shape.kv_heads * shape.head_dim * 4
    assert kv_bytes_per_token(resolve(str(tmp_path)), "float32") == held
