"""Expansion and verification of every branch, as conditions made of timed parts, and the rows that compare them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.claims.rows import Paper, Row
from bench.claims.skipping import skips
from bench.claims.ways import Measured
from bench.harness import ratio
from bench.workload import Job
from search.calibration.binomial import clopper_pearson

CONDITIONS: Mapping[str, tuple[str, str]] = {
    "no-kv": ("expand:no-kv", "verify:reread"),
    "exact-cache": ("expand:exact-cache", "verify:separate"),
    "exact-cache-problem-first": ("expand:exact-cache", "verify:problem-first"),
    "exact-cache-continuation": ("expand:exact-cache", "verify:continuation"),
    "asks-expansion": ("expand:rksc", "verify:reread"),
    "asks": ("expand:rksc", "verify:rksc-separate"),
    "rksc": ("expand:rksc", "verify:rksc"),
    "cgee+skip": ("expand:no-kv", "verify:reread"),
    "asks-expansion+skip": ("expand:rksc", "verify:reread"),
    "rksc+skip": ("expand:rksc", "verify:rksc"),
}
"""Expansion and verification of a condition. `+skip`: no verification in rounds where the paper's rule skips it."""

SAME_TEXT = (("verify:reread", "verify:separate", "verify:rksc-separate"), ("verify:continuation", "verify:rksc"))
"""Verifications that read the same tokens and must give the same verdicts."""

_SKIP = "CGEE level 1 by the paper's rule and defaults, implemented in the benchmark"
COMPARED: Sequence[tuple[str, str, str, Paper, str]] = (
    ("rksc_vs_no_kv", "no-kv", "rksc", 3.008, "full verification in both; the paper's own figure includes skipping"),
    ("rksc_skip_vs_no_kv", "no-kv", "rksc+skip", 3.008, f"rksc with {_SKIP}; no-kv verifies every branch"),
    ("rksc_vs_exact_cache", "exact-cache", "rksc", 1.66, "full verification in both"),
    ("rksc_vs_exact_cache_problem_first", "exact-cache-problem-first", "rksc", None, "full verification in both"),
    ("rksc_vs_exact_cache_continuation", "exact-cache-continuation", "rksc", None, "full verification in both"),
    ("asks_vs_no_kv", "no-kv", "asks", 1.343, "sharing only: separate verification prompts, their problem shared"),
    ("asks_expansion_vs_no_kv", "no-kv", "asks-expansion", 1.343, "sharing in the expansion only; sum of two parts"),
    ("cgee_vs_no_kv", "no-kv", "cgee+skip", None, f"skipping without sharing: {_SKIP}"),
    ("asks_cgee_vs_no_kv", "no-kv", "asks-expansion+skip", 1.622, f"sharing in the expansion, and {_SKIP}"),
)


@dataclass(slots=True)
class Rounds:
    """Measured rounds: seconds and CPU seconds by part, and whether the paper's rule skips verification in each."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    skipped: list[bool] = field(default_factory=list)
    fed: dict[str, int] = field(default_factory=dict)
    p_yes: dict[str, list[float]] = field(default_factory=dict)
    tokens: dict[str, list[list[int]]] = field(default_factory=dict)
    cpu_s: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, measured: Measured) -> None:
        for part, seconds in measured.seconds.items():
            self.seconds.setdefault(part, []).append(seconds)
            self.cpu_s.setdefault(part, []).append(measured.cpu_s[part])
        for part, answers in measured.p_yes.items():
            self.p_yes.setdefault(part, []).extend(answers)
        self.fed.update(measured.fed)
        self.tokens.setdefault(name, []).extend(measured.tokens)
        if measured.confidences:
            self.skipped.append(skips(measured.confidences))

    def condition(self, name: str, cpu: bool = False) -> list[float]:
        """Seconds (or CPU seconds) of each round: expansion and, unless skipped, verification."""
        clock = self.cpu_s if cpu else self.seconds
        expand, verify = (clock[part] for part in CONDITIONS[name])
        skipped = self.skipped if name.endswith("+skip") else [False] * len(expand)
        return [e + (0.0 if skip else v) for e, v, skip in zip(expand, verify, skipped, strict=True)]

    @property
    def outputs_equal(self) -> bool:
        first, *others = self.tokens.values()
        return all(tokens == first for tokens in others)

    def verdicts(self) -> tuple[int, int, float]:
        """(branches whose verdicts differ, branches, largest difference of P(yes)) over equal verification texts."""
        pairs = [
            (own, other)
            for first, *others in SAME_TEXT
            for part in others
            for own, other in zip(self.p_yes[first], self.p_yes[part], strict=True)
        ]
        differ = sum((own >= 0.5) != (other >= 0.5) for own, other in pairs)
        return differ, len(pairs), max(abs(own - other) for own, other in pairs)


def alternate(
    ways: Mapping[str, Any], jobs: Callable[[], Job], warm_up: Job, rounds: int, tell: Callable[[str], None]
) -> Rounds:
    """All ways get the same job in a round, each round starts with another way. A warm-up, not counted, comes first."""
    tell("warm-up")
    for way in ways.values():
        _measured(way, warm_up)
    found, names = Rounds(), list(ways)
    for number in range(rounds):
        tell(f"round {number + 1} of {rounds}")
        job, shift = jobs(), number % len(names)
        for name in names[shift:] + names[:shift]:
            found.add(name, _measured(ways[name], job))
    return found


def _measured(way: Any, job: Job) -> Measured:
    gc.collect()
    way.begin()
    try:
        measured: Measured = way.measure(job)
        return measured
    finally:
        way.end()


def rows(found: Rounds) -> list[Row]:
    """One row a comparison, then what else the rounds tell."""
    compared = []
    for claim, slow, fast, paper, note in COMPARED:
        compared.append(_compared(found, claim, slow, fast, paper, note))
    return [*compared, _peak(found), _skip_rate(found), _tokens(found), _verdicts(found)]


def _compared(found: Rounds, claim: str, slow: str, fast: str, paper: Paper, note: str) -> Row:
    """A ratio of medians; none where both conditions are the same measurements, since no round skipped."""
    n, skipped = len(found.skipped), sum(found.skipped)
    text = f"seconds of {_parts(slow)} / {_parts(fast)}, medians of n rounds; low and high: of one round; {note}"
    if fast.endswith("+skip"):
        text += f"; skipped in {skipped} of {n} rounds"
    if found.condition(slow) == found.condition(fast):
        return Row(claim, paper, None, n, None, None, text)
    times = ratio(found.condition(slow), found.condition(fast))
    cpu = ratio(found.condition(slow, cpu=True), found.condition(fast, cpu=True))
    text += f"; of CPU seconds {cpu.median:.2f} ({cpu.low:.2f} to {cpu.high:.2f})"
    return Row(claim, paper, times.median, n, times.low, times.high, text)


def seconds_rows(found: Rounds) -> dict[str, dict[str, Any]]:
    """Seconds of each condition and each part, for the configuration of the report."""
    seconds = {**{name: found.condition(name) for name in CONDITIONS}, **found.seconds}
    cpu = {**{name: found.condition(name, cpu=True) for name in CONDITIONS}, **found.cpu_s}
    return {
        name: {"seconds_median": median(times), "seconds_all": times, "cpu_seconds_all": cpu[name]}
        for name, times in seconds.items()
    }


def _peak(found: Rounds) -> Row:
    peak = ratio(found.condition("no-kv"), found.condition("rksc"))
    text = "largest ratio of one round of rksc_vs_no_kv; the paper's is the largest over models and benchmarks"
    return Row("rksc_vs_no_kv_peak", 3.990, peak.high, len(found.skipped), None, None, text)


def _skip_rate(found: Rounds) -> Row:
    k, n = sum(found.skipped), len(found.skipped)
    text = f"rounds of the timed workload in which verification is skipped ({_SKIP}); 95 % Clopper-Pearson"
    return Row("skip_rate_timed_workload", None, k / n, n, *clopper_pearson(k, n), text)


def _tokens(found: Rounds) -> Row:
    share = found.fed["verify:rksc"] / found.fed["verify:reread"]
    text = "tokens fed to verify one wave by continuation / by separate prompts that every branch reads whole"
    return Row("verification_tokens_vs_separate", None, share, 1, share, share, text)


def _verdicts(found: Rounds) -> Row:
    differ, n, largest = found.verdicts()
    text = (
        f"branches whose verdict (P(yes) >= 0.5) differs between conditions that read the same verification text; "
        f"largest difference of P(yes) {largest:.1e}; 95 % Clopper-Pearson"
    )
    return Row("verdicts_differ", None, differ / n, n, *clopper_pearson(differ, n), text)


def _parts(condition: str) -> str:
    return f"{condition} ({' + '.join(CONDITIONS[condition])})"
