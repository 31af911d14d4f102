"""Rounds that alternate between conditions, and what is told about their times: medians, ratios, spread."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from bench.conditions import Condition, Outcome
from bench.workload import Job

EXPANSIONS = ("cold", "second")


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times slower than the reference: ratio of medians, and the smallest and largest ratio of one round."""

    median: float
    low: float
    high: float


def ratio(seconds: Sequence[float], reference: Sequence[float]) -> Ratio:
    """Of times measured in the same rounds."""
    each = [s / r for s, r in zip(seconds, reference, strict=True)]
    return Ratio(median(seconds) / median(reference), min(each), max(each))


@dataclass(slots=True)
class Series:
    """What one condition did in one kind of expansion. Counts are those of the warm-up.

    first_token_s: seconds of an expansion that draws one token a branch. early_kv_bytes: KV at its largest, where a
    later expansion of the same engine would raise it.
    """

    prefill_tokens: int | None
    first_token_s: float
    early_kv_bytes: int | None = None
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def peak_kv_bytes(self) -> int:
        return self.outcomes[0].kv_bytes if self.early_kv_bytes is None else self.early_kv_bytes

    @property
    def seconds(self) -> list[float]:
        return [outcome.seconds for outcome in self.outcomes]

    @property
    def tokens(self) -> list[list[int]]:
        """Drawn tokens, branch by branch, round by round."""
        return [row for outcome in self.outcomes for row in outcome.tokens]

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens after the first of each branch, by the time they add to an expansion that draws only the first."""
        rest = sum(len(row) - 1 for row in self.outcomes[0].tokens)
        seconds = median(self.seconds) - self.first_token_s
        return rest / seconds if rest and seconds > 0 else None


def measure(
    conditions: Mapping[str, Condition],
    jobs: Callable[[], Job],
    rounds: int,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, dict[str, Series]]:
    """Condition -> expansion -> series. All conditions get the same job in a round, each round starts with another.

    A round of warm-up comes first.
    """
    names = list(conditions)
    tell("warm-up")
    first, other = jobs(), jobs()
    series = {name: _warm_up(conditions[name], first, other) for name in names}
    for number in range(rounds):
        tell(f"round {number + 1} of {rounds}")
        job = jobs()
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            for expansion, outcome in zip(EXPANSIONS, _round(conditions[name], job, job.new_tokens), strict=True):
                series[name][expansion].outcomes.append(outcome)
    return series


def _warm_up(condition: Condition, job: Job, other: Job) -> dict[str, Series]:
    """Counts tokens, and takes the time of expansions that draw one token a branch."""
    condition.counting = True
    cold, second = _round(condition, job, 1)
    condition.counting = False
    with _begun(condition):
        cold_s = _expand(condition, Job(other.shared, other.hints, 1)).seconds
    return {
        "cold": Series(cold.prefill_tokens, cold_s, cold.kv_bytes),
        "second": Series(second.prefill_tokens, second.seconds),
    }


def _round(condition: Condition, job: Job, second_tokens: int) -> tuple[Outcome, Outcome]:
    """A cold expansion, then one below its first branch."""
    with _begun(condition):
        cold = _expand(condition, job)
        return cold, _expand(condition, job.below(0, cold.tokens[0], second_tokens))


@contextmanager
def _begun(condition: Condition) -> Iterator[None]:
    condition.begin()
    try:
        yield
    finally:
        condition.end()


def _expand(condition: Condition, job: Job) -> Outcome:
    gc.collect()
    return condition.expand(job)
