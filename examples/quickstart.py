"""One problem, then several, then the events of one: no model to download, no key, no network.

python examples/quickstart.py
"""

from __future__ import annotations

from orchestrator import Orchestrator
from search.types import Event


def main() -> None:
    # model="embedded" takes the small model that `make setup` installs; "simulated" needs no model at all.
    with Orchestrator(model="simulated", engines=2, runtime="inline") as orchestrator:
        result = orchestrator.solve("What is 3 + 4 * 2?", strategy="tot", budget={"tokens": 2000})
        print(f"answer {result.answer}, stopped: {result.stop_reason}, {result.cost.generated} tokens")
        print(f"votes: {dict(result.votes)}")

        results = orchestrator.solve_many(["What is 1 + 1?", "What is 2 + 2?"], strategy="self_consistency")
        print("answers:", [one.answer for one in results])

        items = orchestrator.stream("What is 6 * 7?", strategy="mcts")
        kinds = [item.kind for item in items if isinstance(item, Event)]
        print(f"{kinds.count('node')} nodes in {kinds.count('wave')} waves")


if __name__ == "__main__":
    main()
