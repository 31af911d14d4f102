"""Canonical states: what a proposal says, whatever its words. ASKS tier `merged` makes one node of equal ones."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from search.answers import canonical, extract
from search.ports import Context
from search.steps import spoken
from search.tree import SearchTree
from search.types import Outcome, Sample

_NUMBER = r"\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_NUMBERS = re.compile(_NUMBER)
_TERM = rf"[-+]?\$?(?:{_NUMBER})%?"
_EQUATION = re.compile(rf"{_TERM}(?:\s*[-+*/x×÷^]\s*{_TERM})+\s*=\s*{_TERM}(?!\s*[-+*/x×÷^=])")
_SAME = str.maketrans({"×": "*", "x": "*", "÷": "/", "$": None, ",": None})

State = tuple[str, ...]


def state_of(before: str, sample: Sample, complete: bool, kind: str) -> State | None:
    """Canonical state of `sample` behind the path's text `before`; None for one that says too little to tell.

    A finished path is its extracted answer; a step is its numbers, in any order, and its last equation. A step without
    an equation and a step cut by its token limit are only equal to themselves.
    """
    if complete:
        answer = extract(before + sample.text, kind)
        return ("answer", canonical(answer)) if answer is not None and answer.strip() else None
    if sample.finish != "step":
        return None
    text = spoken(before, sample.text)
    equations = _EQUATION.findall(text)
    if not equations:
        return None
    numbers = sorted(found.replace(",", "") for found in _NUMBERS.findall(text))
    return ("step", "".join(equations[-1].split()).translate(_SAME), *numbers)


def merge_siblings(tree: SearchTree, outcome: Outcome) -> tuple[Outcome, list[Context]]:
    """The first sample of each state with the multiplicity of all, and the paths of the others, to be freed.

    Blank samples and those without a state stay as they are.
    """
    parent = tree.node(outcome.node_id)
    before, kind = tree.text(parent), tree.problem.kind
    kept: dict[State | int, Sample] = {}
    others: list[Sample] = []
    for sample in outcome.samples:
        state = None if sample.blank else state_of(before, sample, tree.completes(parent, sample), kind)
        if state is None or state not in kept:
            kept[sample.index if state is None else state] = sample
        else:
            first = kept[state]
            kept[state] = replace(first, multiplicity=first.multiplicity + sample.multiplicity)
            others.append(sample)
    context = tree.asked[outcome.expansion_id].context
    freed = [(*context, s.token_ids) for s in others if not _begins(s, kept.values())]
    return replace(outcome, samples=tuple(kept.values())), freed


def _begins(sample: Sample, others: Iterable[Sample]) -> bool:
    """Whether what engines hold of the sample (all but its last token) is some other one's too."""
    prefix = sample.token_ids[:-1]
    return any(other.token_ids[: len(prefix)] == prefix for other in others)
