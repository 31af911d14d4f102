"""A verifier of one's own: it checks the sums that a path states, without any model.

python examples/own_verifier.py
"""

from __future__ import annotations

import re

from orchestrator import Orchestrator

SUM = re.compile(r"(\d+) \+ (\d+) makes (\d+)")


def sums_are_right(problem: str, text: str) -> float:
    """The share of stated sums that are right, as a score in [0, 1]; 0.5 for a path that states none."""
    sums = SUM.findall(text)
    if not sums:
        return 0.5
    return sum(int(a) + int(b) == int(c) for a, b, c in sums) / len(sums)


def main() -> None:
    with Orchestrator(model="simulated", runtime="inline", verifier=sums_are_right) as orchestrator:
        result = orchestrator.solve("What is 3 + 4 * 2?", strategy="tot")
        scores = sorted({node.score for node in result.tree.nodes() if node.score is not None})
        print(f"answer {result.answer}, scores given: {scores}, tokens fed to judge: {result.cost.verified}")


if __name__ == "__main__":
    main()
