"""What a calibration asks and draws, checked before anything starts; and the decisions of its problems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from orchestrator.cgee import with_known_dtype
from orchestrator.config import Config, UsageError
from orchestrator.decision_log import DecisionLog
from search.calibration.conclude import Question, require_enough
from search.calibration.decisions import decide, text_key
from search.calibration.record import Setting
from search.cgee import registry
from search.cgee.base import Draw
from search.driver import EventSink
from search.strategies.registry import create
from search.types import Problem

if TYPE_CHECKING:
    from orchestrator.orchestrator import Orchestrator

_OURS = ("step_delimiter", "step_regex", "step_tokens", "max_step_tokens", "cgee", "cgee_record", "cgee_audit")
"""Config keys that a calibration sets: branches are whole solutions, and all are verified."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked, and how branches are drawn: `branches` whole solutions a problem, of at most max_tokens each."""

    question: Question
    branches: int = 8
    max_tokens: int = 256
    seed: int = 0

    def config_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The user's config keys with those a calibration sets; UsageError for what cannot be calibrated."""
        if taken := [key for key in _OURS if key in values]:
            raise UsageError(f"calibrate sets {', '.join(taken)} itself; see --branches and --max-tokens")
        steps = {"step_delimiter": None, "step_regex": None, "step_tokens": None, "max_step_tokens": self.max_tokens}
        steps |= {"merged": False}
        config = Config.create(**{**values, **steps})
        if config.verifier == "none":
            raise UsageError("calibrate compares with full verification: verifier 'none' verifies nothing")
        if config.temperature == 0:
            raise UsageError(f"calibrate draws {self.branches} different branches: temperature must be above 0")
        return {**values, **steps, "dtype": with_known_dtype(config).dtype}

    def draw(self, config: Config) -> Draw:
        return Draw(self.branches, 0, config.temperature, config.top_p, self.max_tokens, whole=True)

    def check(self, problems: Sequence[Problem]) -> list[Problem]:
        """The different problems; UsageError for a bad plan, too few of them, or missing answers."""
        question = self.question
        if self.branches < 2:
            raise UsageError(f"a decision needs at least 2 branches, got {self.branches}")
        by_text: dict[str, Problem] = {}
        for problem in problems:
            by_text.setdefault(text_key(problem), problem)
        different = list(by_text.values())
        try:
            registry.grid(question.rule)
            require_enough(question, len(different))
        except ValueError as error:
            raise UsageError(str(error)) from None
        if len({problem.id for problem in different}) < len(different):
            raise UsageError("two different problems have the same id")
        unknown = [problem.id for problem in different if problem.reference is None]
        if question.loss == "harm" and unknown:
            raise UsageError(f"loss 'harm' needs the right answers: problem {unknown[0]!r} has no 'answer'")
        return different

    def settings(self, config: Config, setting: Setting, problems: Sequence[Problem]) -> dict[str, Any]:
        """All that decides what the decisions are and what is asked of them, for the log."""
        texts = "\0".join(f"{p.id}\0{text_key(p)}\0{p.reference}" for p in problems)
        return {
            **asdict(self.question),
            **asdict(setting),
            **asdict(self.draw(config)),
            "seed": self.seed,
            "candidates": {rule: registry.grid(rule) for rule in registry.CALIBRATABLE},
            "data": blake2b(texts.encode(), digest_size=12).hexdigest(),
        }


def decide_all(
    orchestrator: Orchestrator, plan: Plan, problems: Sequence[Problem], log: DecisionLog, on_event: EventSink | None
) -> Iterator[str]:
    """Log the decision of each problem that has none yet; yields why a problem has none now."""
    done = {decision.problem_id for decision in log.decisions}
    left = [problem for problem in problems if problem.id not in done]
    if not left:
        return
    one_wave = create("tot", k=plan.branches, b=1, max_depth=1)
    for result in orchestrator.solve_each(left, one_wave, seed=plan.seed, on_event=on_event):
        try:
            if result.error is not None:
                raise ValueError(result.error)
            log.add(decide(result))
        except ValueError as error:
            yield f"problem {result.problem.id}: {error}"
