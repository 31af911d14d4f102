"""Loads weights on one device: device and dtype by choice or by what the machine has."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from engine.models import ModelSource
from engine.tokenizer import converted_folder, written_once

logger = logging.getLogger(__name__)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def pick_device(name: str = "auto") -> torch.device:
    """ "auto": a CUDA device if there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} asked for, but torch sees no CUDA device; choices here: cpu")
    return device


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """ "auto": bfloat16 on GPUs, float32 on CPUs (where it makes runs reproducible, see docs/decisions.md)."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in DTYPES:
        raise ValueError(f"unknown dtype {name!r}; choices: auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def load_model(source: ModelSource, device: torch.device, dtype: torch.dtype, attention: str) -> nn.Module:
    """Weights in `dtype` on `device`, in evaluation mode. Remote code of a model is never run."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    where: Any = {"folder": source.path, "hub": source.name}.get(source.kind) or _converted(source)
    try:
        model: nn.Module = AutoModelForCausalLM.from_pretrained(where, dtype=dtype, attn_implementation=attention)
    except (KeyError, ValueError):  # a class that takes no other attention than its own; the self-test sorts it out
        model = AutoModelForCausalLM.from_pretrained(where, dtype=dtype)
    return model.to(device).requires_grad_(False).train(False)


def _converted(source: ModelSource) -> Any:
    """Folder with a GGUF file's weights as safetensors; converted once, since each GGUF load dequantises anew."""
    folder = converted_folder(source) / "float32"
    if not folder.is_dir():
        from transformers import AutoModelForCausalLM, GgufConfig

        logger.info("converting %s once into %s", source.path, folder)
        with _quiet():
            model = AutoModelForCausalLM.from_pretrained(
                source.path.parent,
                gguf_file=source.path.name,
                quantization_config=GgufConfig(dequantize=True),
                dtype=torch.float32,
            )
        with written_once(folder) as temporary:
            model.save_pretrained(temporary)
    return folder


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The GGUF reader draws a progress bar that no setting turns off."""
    with contextlib.redirect_stderr(io.StringIO()):
        yield
