"""Heads of reward models: found in a checkpoint's configuration, loaded with the model, read as values in [0, 1]."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from engine.base import Codec
from engine.loading import load_model
from engine.models import ModelSource

HeadKind = Literal["token", "sequence", "labels"]
HEADS: tuple[str, ...] = get_args(HeadKind)
_CLASSES = {"ForTokenClassification": "token", "ForSequenceClassification": "sequence", "ForCausalLM": "labels"}
_OUTPUTS = (1, 2)


class NoHeadError(ValueError):
    """The checkpoint has no head that gives rewards; the message says what it has and what serves."""


@dataclass(frozen=True, slots=True)
class Head:
    """kind "token" or "sequence": transformers' linear `score` of a decoder, with one output (a reward; its sigmoid) or
    two (wrong, right; P(right)). "labels": two words of a language model, good and bad (Math-Shepherd, Wang et al.
    2024): P(good) against P(bad) for the next token.
    """

    kind: HeadKind
    labels: tuple[str, str] | None = None

    @classmethod
    def of(cls, source: ModelSource, asked: str = "auto", labels: tuple[str, str] | None = None) -> Head:
        """The head of a checkpoint, by its configuration alone; NoHeadError where none fits `asked`."""
        found, name, outputs = _found(source)
        if found is None or (asked != "auto" and found != asked):
            want = "a reward model" if asked == "auto" else f"reward_head={asked!r}"
            raise NoHeadError(
                f"{source.name!r} is a {name}, which does not serve as {want}; what serves: a decoder of transformers "
                f"with a head ...ForTokenClassification (token) or ...ForSequenceClassification (sequence), or a "
                f"...ForCausalLM with two reward_labels (labels)"
            )
        if found == "labels":
            if labels is None:
                raise NoHeadError(
                    f"{source.name!r} is a {name} without a reward head; give the two words that it judges steps with "
                    f"as reward_labels, the good one first"
                )
            return cls("labels", labels)
        if labels is not None:
            raise NoHeadError(f"reward_labels={labels!r} go with a language model, {source.name!r} is a {name}")
        if outputs not in _OUTPUTS:
            raise NoHeadError(f"{source.name!r} has a head of {outputs} outputs; 1 (reward) or 2 (wrong, right) serve")
        return cls(found)


class HeadedModel(nn.Module):
    """A decoder with its linear head at every position, called as `engine.packed.Forward` calls a language model."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def base_model(self) -> Any:
        return self.model.base_model

    def set_attn_implementation(self, name: str) -> None:
        self.model.set_attn_implementation(name)

    def forward(self, input_ids: Tensor, logits_to_keep: Tensor | None = None, **inputs: Any) -> Any:
        """input_ids [1, N]; logits [1, N, outputs], or of the positions `logits_to_keep` only."""
        hidden = self.base_model(input_ids=input_ids, **inputs).last_hidden_state
        if logits_to_keep is not None:
            hidden = hidden[:, logits_to_keep]
        return SimpleNamespace(logits=self.model.score(hidden))


def load_headed(source: ModelSource, head: Head, device: torch.device, dtype: torch.dtype, attention: str) -> Any:
    """Weights on `device`; NoHeadError if the files lack the head that their configuration promises."""
    if head.kind == "labels":
        return load_model(source, device, dtype, attention)
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    auto: Any = AutoModelForTokenClassification if head.kind == "token" else AutoModelForSequenceClassification
    where = source.path if source.kind == "folder" else source.name
    model, info = auto.from_pretrained(where, dtype=dtype, attn_implementation=attention, output_loading_info=True)
    if missing := sorted(key for key in info["missing_keys"] if key.startswith("score.")):
        raise NoHeadError(f"the files of {source.name!r} have no weights for {', '.join(missing)}")
    return HeadedModel(model.to(device).requires_grad_(False).train(False))


def reader(head: Head, codec: Codec) -> Any:
    """Function from logits [R, V] to values in [0, 1], [R] in float64."""
    if head.labels is None:
        return _from_outputs
    ids = []
    for word in head.labels:
        tokens = codec.encode(word)
        if len(tokens) != 1:
            raise NoHeadError(f"reward label {word!r} is {len(tokens)} tokens of this tokenizer; it has to be one")
        ids += tokens
    if ids[0] == ids[1]:
        raise NoHeadError(f"reward labels {head.labels!r} are one token of this tokenizer")
    return lambda logits: _from_outputs(logits[:, ids[::-1]])


def _from_outputs(logits: Tensor) -> Tensor:
    values = logits.double()
    return torch.sigmoid(values[:, 0]) if values.shape[1] == 1 else values.softmax(-1)[:, 1]


def _found(source: ModelSource) -> tuple[HeadKind | None, str, int]:
    """(kind of head or None, name of the class, outputs) from config.json; a class that is not transformers' own, whose
    code would have to come with the checkpoint, has none."""
    if source.kind == "gguf":
        return "labels", "GGUF language model", 0
    if source.kind == "simulated":
        return None, "simulated model", 0
    config = json.loads((source.path / "config.json").read_text())
    name = str(next(iter(config.get("architectures") or ()), "model whose config.json names no architecture"))
    outputs = len(config["id2label"]) if config.get("id2label") else int(config.get("num_labels", 2))
    kind: Any = next((kind for ending, kind in _CLASSES.items() if name.endswith(ending)), None)
    return (kind if kind and _served(name, kind) else None), name, outputs


def _served(name: str, kind: HeadKind) -> bool:
    """Whether transformers itself has the class, with a linear head over a decoder where it needs one."""
    import transformers
    from transformers.modeling_layers import GenericForSequenceClassification, GenericForTokenClassification

    known = getattr(transformers, name, None)
    generic = (GenericForSequenceClassification, GenericForTokenClassification)
    return known is not None and (kind == "labels" or (isinstance(known, type) and issubclass(known, generic)))
