"""A tiny random Llama of four layers, and engines on it that share its weights."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from engine.asks.options import Asks
from engine.base import BranchRequest, StepRule
from engine.local import LocalEngine
from tests.tiny import save_tiny_llama

BODY = "The baker sold 17 loaves in the morning and 25 more in the afternoon, at 3 dollars each. How much did he earn?"


class Lab:
    """Builds engines and requests."""

    def __init__(self, loaded: LocalEngine) -> None:
        self.loaded = loaded
        self.engines: list[LocalEngine] = []

    def engine(self, asks: Asks | None = None, **options) -> LocalEngine:
        made = LocalEngine(self.loaded.model, self.loaded.codec, "tiny", asks=asks, **options)
        self.engines.append(made)
        return made

    def path(self, *texts: str) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(self.loaded.codec.encode(text)) for text in texts)

    def ask(self, *texts: str, n: int = 2, new: int = 6, tiers: frozenset[str] | None = None) -> BranchRequest:
        return BranchRequest("x", self.path(*texts), tuple(range(n)), StepRule(max_tokens=new), tiers=tiers)


@pytest.fixture(scope="package")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LocalEngine:
    folder: Path = save_tiny_llama(tmp_path_factory.mktemp("tiny") / "deep", num_hidden_layers=4)
    engine = LocalEngine.load(str(folder), dtype="float32", device="cpu")
    engine.codec.eos_ids = frozenset()
    return engine


@pytest.fixture
def lab(loaded: LocalEngine):
    """The books of all engines must balance at the end."""
    made = Lab(loaded)
    yield made
    for engine in made.engines:
        engine.check_integrity()
