"""Cleaning of an outcome before it is judged: equal proposals become one sample with a multiplicity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from search.types import Outcome, Sample, Verdict


def deduplicate(outcome: Outcome) -> Outcome:
    """Merge samples of equal text (white space at the ends aside) into the first; blank ones are left as they are."""
    first: dict[str, Sample] = {}
    blanks: list[Sample] = []
    for sample in outcome.samples:
        key = sample.text.strip()
        if not key:
            blanks.append(sample)
        elif key in first:
            first[key] = replace(first[key], multiplicity=first[key].multiplicity + sample.multiplicity)
        else:
            first[key] = sample
    return replace(outcome, samples=(*first.values(), *blanks))


def judged(outcome: Outcome, verdicts: Sequence[Verdict]) -> Outcome:
    """Attach verdicts to the non-blank samples, in order."""
    remaining = iter(verdicts)
    samples = tuple(s if s.blank else replace(s, verdict=next(remaining)) for s in outcome.samples)
    return replace(outcome, samples=samples)
