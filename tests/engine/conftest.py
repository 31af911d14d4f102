"""Tiny random models with a real tokenizer, saved in transformers format."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random 2-layer Llama (GQA, hidden 64), a byte-level tokenizer and a chat template."""
    from tests.tiny import save_tiny_llama

    return save_tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")
