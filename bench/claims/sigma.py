"""ASKS' sigma for real: does it tell the same problem in other words from another problem in the same words?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp
from typing import Any

import torch
from torch import Tensor

from bench.baselines import tensor
from bench.claims.intervals import auc, bootstrap, clopper_pearson
from bench.claims.phrasing import as_given
from bench.claims.problems import Question
from bench.claims.rows import Row
from bench.workload import Tokens
from engine.base import Codec

ALPHA = 1.5
TAU = 0.75
"""The paper's threshold for models it does not name."""

States = Sequence[Tensor]
"""Hidden states [T, D] after each layer."""
Pool = Callable[[States, int], list[Tensor]]
"""States and the number of tokens that the pair has in common at its start -> one vector a layer."""
_OTHER = 2
"""The phrasing that a problem is compared with: it begins and ends with words of its own."""


def sigma(a: Sequence[Tensor], b: Sequence[Tensor], alpha: float = ALPHA) -> float:
    """sum_l w_l cos(a_l, b_l) / sum_l w_l with w_l = exp(alpha l / L), layers l = 1 .. L. One vector a layer."""
    layers = len(a)
    weights = [exp(alpha * layer / layers) for layer in range(1, layers + 1)]
    cosines = [float(torch.cosine_similarity(x.double(), y.double(), dim=0)) for x, y in zip(a, b, strict=True)]
    return sum(w * c for w, c in zip(weights, cosines, strict=True)) / sum(weights)


def last_token(states: States, common: int) -> list[Tensor]:
    """The paper's rule."""
    return [layer[-1] for layer in states]


def mean_of_suffix(states: States, common: int) -> list[Tensor]:
    """Mean over the tokens behind the common start (the last token where there are none)."""
    return [layer[min(common, len(layer) - 1) :].mean(dim=0) for layer in states]


VARIANTS: dict[str, Pool] = {"paper": last_token, "mean_suffix": mean_of_suffix}


@torch.inference_mode()
def hidden(model: Any, prompt: Tokens) -> list[Tensor]:
    """States of every layer, the embeddings left out."""
    out = model.base_model(input_ids=tensor(model, [list(prompt)]), use_cache=False, output_hidden_states=True)
    return [layer[0] for layer in out.hidden_states[1:]]


def rows(model: Any, codec: Codec, questions: Sequence[Question]) -> list[Row]:
    """For each variant: the area under the ROC curve, and how much of either class tau would let share KV."""
    prompts = [(group[0], group[_OTHER]) for group in as_given(codec, questions)]
    states = [(hidden(model, plain), hidden(model, other)) for plain, other in prompts]
    found = []
    for name, pool in VARIANTS.items():
        same, different = _scores(pool, prompts, states)
        found += _rows(name, same, different)
    return found


def _scores(
    pool: Pool, prompts: Sequence[tuple[Tokens, Tokens]], states: Sequence[tuple[States, States]]
) -> tuple[list[float], list[float]]:
    """sigma of each problem with itself in another phrasing, and with the next problem in its own phrasing."""

    def of(i: int, j: int, phrase: int) -> float:
        common = _common(prompts[i][0], prompts[j][phrase])
        return sigma(pool(states[i][0], common), pool(states[j][phrase], common))

    count = len(prompts)
    return [of(i, i, 1) for i in range(count)], [of(i, (i + 1) % count, 0) for i in range(count)]


def _rows(name: str, same: Sequence[float], different: Sequence[float]) -> list[Row]:
    count = len(same)
    area = lambda units: auc([same[i] for i in units], [different[i] for i in units])  # noqa: E731
    low, high = bootstrap(count, area)
    mean_same, mean_different = sum(same) / count, sum(different) / count
    text = (
        f"ROC-AUC of sigma ({name}, alpha {ALPHA}): same problem in another phrasing (mean {mean_same:.3f}) against "
        f"another problem in the same phrasing (mean {mean_different:.3f}); 0.5 tells nothing, below it prefers the "
        "wrong one; 95 % bootstrap over problems"
    )
    return [
        Row(f"sigma_auc_{name}", None, area(range(count)), count, low, high, text),
        _shares(name, "different_problems", different, "different problems in one phrasing"),
        _shares(name, "same_problem", same, "the same problem in two phrasings"),
    ]


def _shares(name: str, claim: str, scores: Sequence[float], pairs: str) -> Row:
    k, n = sum(score >= TAU for score in scores), len(scores)
    text = f"pairs ({pairs}) with sigma ({name}) >= tau = {TAU}, which would share KV; {k} of {n}; 95 % Clopper-Pearson"
    return Row(f"sigma_shares_{claim}_{name}", None, k / n, n, *clopper_pearson(k, n), text)


def _common(a: Tokens, b: Tokens) -> int:
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return length
