"""Generated tasks of the package `reasoning-gym` (an optional extra): problems without end, own scoring."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from search.tasks.base import Row, Task
from search.types import Problem

INSTALL = "pip install 'rksc-orchestrator[tasks]'"


@dataclass(frozen=True)
class GymChecker:
    """The data set's own score of an answer; right is a full score. Not for other processes: it holds the data set."""

    dataset: Any
    entry: Row

    def __call__(self, answer: str) -> bool:
        return float(self.dataset.score_answer(answer=answer, entry=self.entry)) >= 1.0


@dataclass(frozen=True)
class ReasoningGym(Task):
    """dataset: one of reasoning-gym's, such as "chain_sum". Its rows have `question` and `answer`."""

    name: ClassVar[str] = "reasoning_gym"
    dataset: str = "chain_sum"

    def generate(self, count: int, seed: int = 0, **config: Any) -> list[Problem]:
        """`count` problems, a function of seed and config; ValueError says what the package refuses.

        ImportError, with how to install it, where the package is missing.
        """
        try:
            gym = import_module("reasoning_gym")
        except ImportError as error:
            raise ImportError(f"task 'reasoning_gym' needs the package reasoning-gym: {INSTALL}") from error
        try:
            data = gym.create_dataset(self.dataset, size=count, seed=seed, **config)
        except (ValueError, TypeError, AssertionError) as error:
            raise ValueError(f"reasoning_gym {self.dataset!r} with {config}: {error}") from None
        return [self._entry(data, data[i], f"{self.dataset}-{seed}-{i}") for i in range(count)]

    def _entry(self, data: Any, entry: Row, problem_id: str) -> Problem:
        return Problem(
            self.question(entry), problem_id, self.kind, self.reference(entry), checker=GymChecker(data, entry)
        )
