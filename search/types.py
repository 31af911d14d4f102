"""Frozen values that flow between strategy, driver, pool and verifier.

`search` names no device and no model: token ids are opaque integers that are stored once per node and handed on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Literal

Finish = Literal["step", "stop", "eos", "length", "pruned", "cancelled", "error"]
"""Why a sample ended: step boundary, stop string, end-of-sequence token, token limit, low confidence (`PruneRule`),
cancelled, engine error."""

ENDED: frozenset[str] = frozenset({"eos", "stop"})
"""Finish reasons after which a reasoning path is over."""

CUT: frozenset[str] = frozenset({"length", "pruned", "cancelled"})
"""Finish reasons of a text that was cut somewhere, so that its end states nothing."""


Checker = Callable[[str], bool]
"""Whether an answer is right; built for one problem (see `search.checkers`)."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One question. `kind` selects answer extraction (see `search.answers.extract`).

    reference: the right answer, if it is known. checker: decides instead where several answers are right.
    """

    text: str
    id: str = ""
    kind: str = "auto"
    reference: str | None = None
    checker: Checker | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise ValueError(f"a problem is a text, got a {type(self.text).__name__}")
        if not self.text.strip():
            raise ValueError("problem is empty: a problem needs at least one non-blank character")
        if not self.id:
            object.__setattr__(self, "id", blake2b(self.text.encode(), digest_size=6).hexdigest())


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where one reasoning step ends; the first rule that fires wins.

    delimiter: text that closes a step once the step holds something else than white space.
    regex: searched in the step's text. tokens: a step is exactly this many tokens. fn: called with the step's text.
    """

    delimiter: str | None = "\n\n"
    regex: str | None = None
    tokens: int | None = None
    fn: Callable[[str], bool] | None = None

    def __post_init__(self) -> None:
        try:
            re.compile(self.regex or "")
        except re.error as error:
            raise ValueError(f"a boundary's regex is a regular expression, got {self.regex!r}: {error}") from None

    @classmethod
    def none(cls) -> Boundary:
        """No boundary: generate until the path ends."""
        return cls(delimiter=None)


@dataclass(frozen=True, slots=True)
class PruneRule:
    """Watches the mean confidence of each group of `window` tokens in a row (DeepConf, Fu et al. 2025, online mode).

    A token's confidence is minus the mean log-probability of the likeliest tokens in its place. floor: a sample whose
    newest whole group is below it ends at once, as "pruned"; None only records the lowest group.
    """

    window: int
    floor: float | None = None

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"a group has at least 1 token, got {self.window}")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. temperature 0 is greedy; max_tokens bounds one step of one sample. prune: ends samples of
    low confidence, needs the capability of that name."""

    temperature: float = 0.8
    top_p: float = 0.95
    max_tokens: int = 96
    boundary: Boundary = Boundary()
    stop: tuple[str, ...] = ()
    prune: PruneRule | None = None

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature must be >= 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be >= 1, got {self.max_tokens}")


Mode = Literal["sample", "rollout", "propose", "refine"]
"""Independent next steps; whole continuations that only simulate; next steps proposed in one reply; new solutions
behind a request to improve the one above (see `search.follow_up`)."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """Order to grow `n` children below one node.

    id is unique in a run and makes a repeated order harmless. context: token segments from the prompt to the node.
    The random stream of sample i depends on (seed, problem_id, node_id, i) only, never on batch, worker or order.
    """

    id: str
    problem_id: str
    node_id: str
    context: tuple[tuple[int, ...], ...]
    n: int
    sampling: Sampling
    seed: int = 0
    first_sample: int = 0
    deadline_s: float | None = None
    hint: str = ""
    tiers: tuple[str, ...] | None = None
    """ASKS tiers that may approximate its KV; None: those of the engines' configuration."""
    mode: Mode = "sample"

    def clipped(self, n: int, max_tokens: int) -> Expansion:
        """The same order with fewer samples or tokens."""
        n, max_tokens = min(n, self.n), min(max_tokens, self.sampling.max_tokens)
        return replace(self, n=n, sampling=replace(self.sampling, max_tokens=max_tokens))


@dataclass(frozen=True, slots=True)
class Cost:
    """Tokens and seconds of one call or a sum of calls; `reused` counts row tokens by RKSC tier.

    Of a path's tokens: available_hit, those that some engine held when the order was placed; predicted_hit, those that
    the engine it was placed on held by then or would hold; actual_hit, those that it held when it began; mispredicted,
    those of whole segments in which the last two differ (paths may part, and what is held may end, inside a segment).

    layer_rows: layers that were run to read questions, each row counting; full passes take `layer_rows_full`. exits:
    questions whose reading ended early. saved: tokens that samples called back in flight, or pruned, could still have
    generated at most, their limits less what they had.
    """

    generated: int = 0
    prefilled: int = 0
    verified: int = 0
    reused: Mapping[str, int] = field(default_factory=dict)
    predicted_hit: int = 0
    actual_hit: int = 0
    available_hit: int = 0
    mispredicted: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    exits: int = 0
    layer_rows: int = 0
    layer_rows_full: int = 0
    saved: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.generated + other.generated,
            self.prefilled + other.prefilled,
            self.verified + other.verified,
            _merged(self.reused, other.reused),
            self.predicted_hit + other.predicted_hit,
            self.actual_hit + other.actual_hit,
            self.available_hit + other.available_hit,
            self.mispredicted + other.mispredicted,
            _merged(self.seconds, other.seconds),
            self.exits + other.exits,
            self.layer_rows + other.layer_rows,
            self.layer_rows_full + other.layer_rows_full,
            self.saved + other.saved,
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verifier's judgement of one path: score in [0, 1], or None with the reason in `error`.

    A path that CGEE did not verify has no score either but the rule's standing, and why in `skipped`. An error beside a
    score says what was left out of it. None without an error: nothing to judge yet.
    """

    score: float | None
    by: str
    cost: Cost = Cost()
    error: str | None = None
    standing: float | None = None
    skipped: str | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One continuation: its text and token ids, log-probability sum, mean top-1 probability, and why it ended.

    lowest: mean confidence of its lowest group, where a `PruneRule` watched it. asked: the first of its token ids that
    are the request it replies to, and were not generated.
    """

    text: str
    token_ids: tuple[int, ...]
    finish: Finish
    index: int = 0
    logprob: float | None = None
    confidence: float | None = None
    multiplicity: int = 1
    verdict: Verdict | None = None
    lowest: float | None = None
    asked: int = 0

    @property
    def blank(self) -> bool:
        return not self.text.strip()

    @property
    def generated(self) -> int:
        """Tokens."""
        return len(self.token_ids) - self.asked


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came back for one expansion: samples, or an error; `engine` names who did it.

    cancelled: the order was called back because nobody needed it any more; what it had written is not in the tree.
    """

    expansion_id: str
    problem_id: str
    node_id: str
    samples: tuple[Sample, ...] = ()
    engine: str = ""
    cost: Cost = Cost()
    error: str | None = None
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class ExitRule:
    """CGEE level 2: lets an engine end the reading of a question before its last layer, where it can.

    mode: "paper" (entropy, threshold theta in nats) or "margin" (log-odds of yes). threshold None: the mode's default.
    """

    mode: Literal["paper", "margin"]
    threshold: float | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("paper", "margin"):
            raise ValueError(f"layer exit has no mode {self.mode!r}; choices: paper, margin")
        if self.threshold is not None and not self.threshold >= 0:
            raise ValueError(f"layer exit's threshold is a number of at least 0, got {self.threshold}")


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Ask an engine for P(yes) of `question` (a rendered text) appended to the path `context`.

    values: other labels, each a single token, with a value each; then their expected value is asked for.
    """

    id: str
    context: tuple[tuple[int, ...], ...]
    question: str
    engine: str = ""
    layer_exit: ExitRule | None = None
    values: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Score:
    """Answer to a ScoreRequest: P(yes) or the expected value, or None with an error."""

    id: str
    p_yes: float | None
    engine: str = ""
    cost: Cost = Cost()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Thought:
    """What a node says: the step's text and token ids (stored here and nowhere else)."""

    text: str
    token_ids: tuple[int, ...] = ()
    finish: Finish = "step"
    logprob: float | None = None
    confidence: float | None = None
    lowest: float | None = None
    asked: int = 0

    @property
    def generated(self) -> int:
        """Tokens, without the request that the step replies to."""
        return len(self.token_ids) - self.asked


@dataclass(frozen=True, slots=True)
class Selection:
    """The strategy's answer: chosen node, why the search ended on its own, and votes.

    votes: weight of each group of equivalent answers, under the form that was stated first.
    """

    answer: str | None
    node_id: str | None
    complete: bool
    reason: str = "done"
    votes: Mapping[str, float] = field(default_factory=dict)
    unused: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, for progress bars, logs and reports. `t_s` is the injected clock."""

    kind: str
    problem_id: str
    t_s: float
    data: Mapping[str, Any] = field(default_factory=dict)


def _merged(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    return {key: a.get(key, 0) + b.get(key, 0) for key in {**a, **b}}
