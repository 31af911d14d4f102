"""A world of problems with known truth, for statistics over thousands of them.

How often a step is right, how alike wrong answers are and how well a verifier tells right from wrong (its AUC) are
parameters. `search.simulated` is the pool that reasons in it.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from hashlib import blake2b
from statistics import NormalDist

from search.types import Problem

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class World:
    """depth: steps before the answer. p_step: chance that a step behind right steps is right; spread: standard
    deviation of its logit between problems. repair, keep: chance that a request to improve leaves a wrong, a right
    solution right. lure: chance that a wrong path ends in the one tempting wrong answer, else in one of `wrong` others.
    auc: chance that the verifier scores a right path above a wrong one; confidence_auc: the same of the sampler's
    confidence. tokens: fewest and most tokens of a step, or an answer.
    """

    seed: int = 0
    depth: int = 4
    p_step: float = 0.8
    spread: float = 1.0
    repair: float = 0.2
    keep: float = 0.9
    lure: float = 0.4
    wrong: int = 8
    auc: float = 0.8
    confidence_auc: float = 0.6
    tokens: tuple[int, int] = (10, 30)

    def __post_init__(self) -> None:
        for name in ("p_step", "auc", "confidence_auc"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ValueError(f"world {name} must be in (0, 1), got {getattr(self, name)!r}")

    def problems(self, count: int) -> list[Problem]:
        ids = [f"w{self.seed}-{i}" for i in range(count)]
        return [Problem(f"Problem {id}", id, "number", str(self.truth(id))) for id in ids]

    def truth(self, problem_id: str) -> int:
        return 100 * self.draw("truth", problem_id).randrange(1, 90)

    def step_chance(self, problem_id: str) -> float:
        """The problem's own chance of a right step."""
        easy = self.draw("easy", problem_id).gauss(0.0, 1.0)
        return 1 / (1 + math.exp(-(math.log(self.p_step / (1 - self.p_step)) + self.spread * easy)))

    def answer(self, problem_id: str, right: bool, draw: random.Random) -> int:
        truth = self.truth(problem_id)
        if right:
            return truth
        return truth + (1 if draw.random() < self.lure else 2 + draw.randrange(self.wrong))

    def judge(self, right: bool, auc: float, *key: object) -> float:
        """A score in (0, 1): normal with unit variance, shifted for right paths so that the AUC is `auc`."""
        shift = math.sqrt(2) * _NORMAL.inv_cdf(auc)
        return _NORMAL.cdf(self.draw("judge", *key).gauss(shift / 2 if right else -shift / 2, 1.0))

    def draw(self, *key: object) -> random.Random:
        """A random stream for these coordinates."""
        digest = blake2b("\0".join(map(str, (self.seed, *key))).encode(), digest_size=8).digest()
        return random.Random(int.from_bytes(digest, "big"))
