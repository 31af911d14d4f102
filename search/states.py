"""Canonical states: what a proposal says, whatever its words. ASKS tier `merged` makes one node of equal ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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
        return ("answer", canonical(answer, kind)) if answer is not None and answer.strip() else None
    if sample.finish != "step":
        return None
    text = spoken(before, sample.text)
    equations = _EQUATION.findall(text)
    if not equations:
        return None
    numbers = sorted(found.replace(",", "") for found in _NUMBERS.findall(text))
    return ("step", "".join(equations[-1].split()).translate(_SAME), *numbers)


def merge_siblings(tree: SearchTree, outcomes: Sequence[Outcome]) -> tuple[list[Outcome], list[Context]]:
    """The first sample of each state of an outcome with the multiplicity of all, and the paths of the others, to be
    freed.

    Blank samples and those without a state stay as they are. Siblings of two outcomes are not merged.
    """
    merged = [_merged(tree, outcome) for outcome in outcomes]
    kept = [outcome for outcome, _ in merged]
    live: dict[tuple[str, Context], list[tuple[int, ...]]] = {}
    for outcome in kept:
        order = tree.asked[outcome.expansion_id]
        live.setdefault((order.node_id, order.context), []).extend(s.token_ids for s in outcome.samples)
    freed: list[Context] = []
    for outcome, others in merged:
        order = tree.asked[outcome.expansion_id]
        children = (c for c in tree.children(tree.node(order.node_id)) if c.hint == order.hint)
        held = [*live[order.node_id, order.context], *(c.thought.token_ids for c in children if c.status != "pruned")]
        freed += [(*order.context, s.token_ids) for s in others if not _begins(s, held)]
    return kept, freed


def _merged(tree: SearchTree, outcome: Outcome) -> tuple[Outcome, list[Sample]]:
    """The outcome with one sample for each state, and the samples that went into others."""
    parent = tree.node(outcome.node_id)
    done = [not sample.blank and tree.completes(parent, sample) for sample in outcome.samples]
    telling = any(done) or any("=" in sample.text for sample in outcome.samples)
    before, kind = tree.text(parent) if telling else "", tree.problem.kind
    kept: dict[State | int, Sample] = {}
    others: list[Sample] = []
    for sample, complete in zip(outcome.samples, done, strict=True):
        state = None if sample.blank else state_of(before, sample, complete, kind)
        if state is None or state not in kept:
            kept[sample.index if state is None else state] = sample
        else:
            first = kept[state]
            kept[state] = replace(first, multiplicity=first.multiplicity + sample.multiplicity)
            others.append(sample)
    return replace(outcome, samples=tuple(kept.values())), others


def _begins(sample: Sample, others: Iterable[tuple[int, ...]]) -> bool:
    """Whether what engines hold of the sample (all but its last token) is some other path's too."""
    prefix = sample.token_ids[:-1]
    return any(other[: len(prefix)] == prefix for other in others)
