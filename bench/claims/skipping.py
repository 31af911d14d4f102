"""CGEE level 1 by the paper's rule, and what skipping changes against verifying every branch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TAU, GAP, RELATIVE = 0.70, 0.06, 0.08
"""The paper's defaults (RKSC, CGEE level 1)."""


def skips(confidences: Sequence[float], tau: float = TAU, gap: float = GAP, relative: float = RELATIVE) -> bool:
    """Whether the paper's rule skips verification. confidences: mean top-1 probability of each branch's tokens.

    top >= tau and top - second >= gap, or top >= 0.9 tau and (top - second) / top >= relative.
    """
    if len(confidences) < 2:
        raise ValueError(f"the rule compares two branches; got {len(confidences)}")
    top, second = sorted(confidences, reverse=True)[:2]
    return (top >= tau and top - second >= gap) or (top >= 0.9 * tau and (top - second) / top >= relative)


@dataclass(frozen=True, slots=True)
class Decision:
    """One node's choice among its branches. right: whether each branch's answer is the true one."""

    family: str
    confidences: tuple[float, ...]
    p_yes: tuple[float, ...]
    right: tuple[bool, ...]

    @property
    def skipped(self) -> bool:
        return skips(self.confidences)

    @property
    def verified(self) -> int:
        """The branch that full verification selects; of equal ones the first."""
        return _first_largest(self.p_yes)

    @property
    def selected(self) -> int:
        """The branch that the rule selects: the most confident one if it skips."""
        return _first_largest(self.confidences) if self.skipped else self.verified

    @property
    def flip(self) -> bool:
        return self.selected != self.verified

    @property
    def harm(self) -> bool:
        """A flip where full verification was right (RKSC.md 4), whatever the other branch's answer."""
        return self.flip and self.right[self.verified]

    @property
    def error(self) -> bool:
        """Skipping turned a right answer into a wrong one."""
        return self.right[self.verified] and not self.right[self.selected]

    @property
    def benefit(self) -> bool:
        """Skipping turned a wrong answer into a right one."""
        return self.right[self.selected] and not self.right[self.verified]


def _first_largest(values: Sequence[float]) -> int:
    return max(range(len(values)), key=lambda i: (values[i], -i))
