"""What every measured way of expanding looks like, and building one by name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from bench.workload import Job, Point
from engine.models import ModelSource
from engine.tokenizer import HFCodec, converted_folder

CONDITIONS = {
    "no-kv": "bench.baselines:NoKV",
    "exact-cache": "bench.baselines:ExactCache",
    "exact-cache-transformers": "bench.paged:Paged",
    "exact-cache-vllm": "bench.vllm_client:VLLM",
    "rksc": "bench.ours:Rksc",
}


class UnavailableError(RuntimeError):
    """This condition cannot run here; the message says why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """seconds: of the expansion alone. prefill_tokens: prompt tokens fed to the model (None: not counted this time).

    kv_bytes: KV at its largest.
    """

    tokens: list[list[int]]
    seconds: float
    prefill_tokens: int | None
    kv_bytes: int


class Condition(Protocol):
    """counting: whether tokens may be counted inside the timed region (warm-up only)."""

    counting: bool

    @property
    def settings(self) -> dict[str, Any]:
        """What a reader must know to repeat the measurement."""
        ...

    def begin(self) -> None:
        """Get ready for a round with nothing cached; not timed."""
        ...

    def expand(self, job: Job) -> Outcome: ...

    def end(self) -> None:
        """Give back what the round held; not timed."""
        ...


class Setup:
    """What conditions share: the model, its files, dtype and threads. Heavy parts are loaded when first asked for."""

    def __init__(
        self,
        source: ModelSource,
        dtype: str = "float32",
        threads: int = 1,
        device: str = "cpu",
        vllm_python: Path | None = None,
        vllm_eager: bool = False,
    ) -> None:
        self.source = source
        self.dtype = dtype
        self.threads = threads
        self.device = device
        self.vllm_python = vllm_python
        self.vllm_eager = vllm_eager
        self.longest = 0

    @cached_property
    def codec(self) -> HFCodec:
        return HFCodec(self.source)

    @cached_property
    def stock(self) -> Any:
        """The model as transformers loads it, with its own attention."""
        return self.load_stock()

    @cached_property
    def vllm(self) -> Any:
        from bench.vllm_client import Worker

        return Worker(self)

    @cached_property
    def kv_bytes_per_token(self) -> int:
        from engine.loading import DTYPES

        config = self.stock.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return int(2 * config.num_hidden_layers * heads * dim * DTYPES[self.dtype].itemsize)

    def load_stock(self) -> Any:
        import torch

        from engine.loading import DTYPES, load_model

        device = torch.device(self.device)
        if device.type == "cpu":
            torch.set_num_threads(self.threads)
        return load_model(self.source, device, DTYPES[self.dtype], "sdpa")

    def folders(self) -> tuple[Path, Path]:
        """Weights and tokenizer in transformers format."""
        if self.source.kind != "gguf":
            return self.source.path, self.source.path
        folder = converted_folder(self.source)
        if not (folder / "float32").is_dir():
            self.load_stock()
        return folder / "float32", folder / "tokenizer"

    def close(self) -> None:
        if "vllm" in self.__dict__:
            self.vllm.close()


def build(name: str, setup: Setup, point: Point) -> Condition:
    """The condition `name`, ready for a point of the grid; UnavailableError where it cannot run."""
    module, _, attribute = CONDITIONS[name].partition(":")
    condition: Condition = getattr(import_module(module), attribute)(setup, point)
    return condition
