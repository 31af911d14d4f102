"""Cleaning of an outcome before it is judged: equal proposals become one sample with a multiplicity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from search.types import CUT, ENDED, Outcome, Sample, Verdict


def deduplicate(outcome: Outcome) -> Outcome:
    """Merge samples of equal text (white space at the ends aside); blank ones are left as they are.

    The first one stands for all that came as far as it; one that ended the path stands for those that did not, and a
    whole step for one that was cut.
    """
    first: dict[str, Sample] = {}
    blanks: list[Sample] = []
    for sample in outcome.samples:
        key = sample.text.strip()
        if not key:
            blanks.append(sample)
        elif key in first:
            multiplicity = first[key].multiplicity + sample.multiplicity
            first[key] = replace(max(first[key], sample, key=_progress), multiplicity=multiplicity)
        else:
            first[key] = sample
    return replace(outcome, samples=(*first.values(), *blanks))


def _progress(sample: Sample) -> int:
    return 2 if sample.finish in ENDED else 0 if sample.finish in CUT else 1


def judged(outcome: Outcome, verdicts: Sequence[Verdict]) -> Outcome:
    """Attach verdicts to the non-blank samples, in order."""
    remaining = iter(verdicts)
    samples = tuple(s if s.blank else replace(s, verdict=next(remaining)) for s in outcome.samples)
    return replace(outcome, samples=samples)
