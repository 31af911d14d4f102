"""ASKS' sigma for real: does it tell the same problem in other words from another problem in the same words?"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from bench.baselines import tensor
from bench.claims.intervals import auc, bootstrap
from bench.claims.phrasing import as_given
from bench.claims.problems import Question
from bench.claims.rows import Row
from bench.workload import Tokens
from engine.base import Codec
from search.calibration.binomial import clopper_pearson

ALPHA = 1.5
TAU = 0.75
"""The paper's threshold for models it does not name."""

States = Sequence[Tensor]
"""Hidden states [T, D] after each layer."""
Pool = Callable[[States, int], list[Tensor]]
"""States and the number of tokens that the pair has in common at its start -> one vector a layer."""
NEGATIVES = {
    "other_problem": "another problem in the same phrasing",
    "changed_number": "the same text with one number changed",
}
"""Prompts whose KV must not be taken for the problem's own."""


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


@dataclass(frozen=True, slots=True)
class Family:
    """Prompts of one problem: the problem itself, in other phrasings, and with one number changed (None: has none)."""

    plain: Tokens
    rephrased: Sequence[Tokens]
    changed: Tokens | None


def families(codec: Codec, questions: Sequence[Question]) -> list[Family]:
    changed = [replace(question, text=_changed(question.text)) for question in questions]
    groups = zip(questions, changed, as_given(codec, questions), as_given(codec, changed), strict=True)
    return [
        Family(own[0], own[1:], other[0] if fresh.text != question.text else None)
        for question, fresh, own, other in groups
    ]


def _changed(text: str) -> str:
    """The first number becomes one more: another problem, with another answer."""
    return re.sub(r"\d+", lambda found: str(int(found[0]) + 1), text, count=1)


@dataclass(frozen=True, slots=True)
class Scores:
    """sigma of one problem's pairs under one variant."""

    rephrased: Sequence[float]
    other_problem: Sequence[float]
    changed_number: Sequence[float]


def rows(model: Any, codec: Codec, questions: Sequence[Question]) -> list[Row]:
    """For each variant: areas under the ROC curve, and how much of each class tau would let share KV."""
    found = families(codec, questions)
    plain = [hidden(model, family.plain) for family in found]
    scores: dict[str, list[Scores]] = {name: [] for name in VARIANTS}
    for i, family in enumerate(found):
        after = (i + 1) % len(found)
        rephrased = [(prompt, hidden(model, prompt)) for prompt in family.rephrased]
        changed = [(family.changed, hidden(model, family.changed))] if family.changed else []
        others = [(found[after].plain, plain[after])]
        for name, pool in VARIANTS.items():
            each = [_scores(pool, (family.plain, plain[i]), pairs) for pairs in (rephrased, others, changed)]
            scores[name].append(Scores(*each))
    return [row for name, of in scores.items() for row in _rows(name, of)]


Run = tuple[Tokens, States]
"""A prompt and its states."""


def _scores(pool: Pool, root: Run, others: Sequence[Run]) -> list[float]:
    """sigma of a prompt with each of the others."""
    found = []
    for prompt, states in others:
        common = _common(root[0], prompt)
        found.append(sigma(pool(root[1], common), pool(states, common)))
    return found


def _rows(name: str, scores: Sequence[Scores]) -> list[Row]:
    classes = {"rephrased": "the same problem in another phrasing"} | NEGATIVES
    return [
        *(_area(name, kind, having) for kind in NEGATIVES if (having := [s for s in scores if getattr(s, kind)])),
        *(_shares(name, kind, pairs, scores) for kind, pairs in classes.items()),
    ]


def _area(name: str, negative: str, scores: Sequence[Scores]) -> Row:
    def area(units: Sequence[int]) -> float:
        same = [score for i in units for score in scores[i].rephrased]
        return auc(same, [score for i in units for score in getattr(scores[i], negative)])

    count = len(scores)
    low, high = bootstrap(count, area)
    means = ", ".join(f"{kind} {_mean(scores, kind):.4f}" for kind in ("rephrased", negative))
    text = (
        f"ROC-AUC of sigma ({name}, alpha {ALPHA}): the same problem in another phrasing against "
        f"{NEGATIVES[negative]}; means {means}; 0.5 tells nothing, below it prefers the wrong one; "
        "95 % bootstrap over problems"
    )
    claim = f"sigma_auc_{name}" if negative == "other_problem" else f"sigma_auc_{name}_{negative}"
    return Row(claim, None, area(range(count)), count, low, high, text)


def _mean(scores: Sequence[Scores], kind: str) -> float:
    return mean(score for of in scores for score in getattr(of, kind))


def _shares(name: str, kind: str, pairs: str, scores: Sequence[Scores]) -> Row:
    """One pair a problem, so that pairs are independent."""
    first = [found[0] for of in scores if (found := getattr(of, kind))]
    k, n = sum(score >= TAU for score in first), len(first)
    text = f"pairs ({pairs}) with sigma ({name}) >= tau = {TAU}, which would share KV; {k} of {n}; 95 % Clopper-Pearson"
    return Row(f"sigma_shares_{kind}_{name}", None, k / n if n else None, n, *clopper_pearson(k, n), text)


def _common(a: Tokens, b: Tokens) -> int:
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return length
