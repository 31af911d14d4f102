"""`python -m bench.arithmetic`: short sums, differences and products as JSONL, each different, for calibrations.

A model as small as the embedded one gives answers to these, right or wrong, that its branches agree on now and then.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator
from itertools import islice

SEED = 7
_OPERATIONS: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "+": ("plus", lambda a, b: a + b),
    "-": ("minus", lambda a, b: a - b),
    "*": ("times", lambda a, b: a * b),
}


def problems() -> Iterator[dict[str, str]]:
    """All of them, in a fixed random order."""
    terms = [(a, b, o) for a in range(20) for b in range(20) for o in "+-"]
    terms += [(a, b, "*") for a in range(11) for b in range(11)]
    random.Random(SEED).shuffle(terms)
    seen: set[str] = set()
    for a, b, operation in terms:
        if operation == "-" and b > a:
            a, b = b, a
        word, result = _OPERATIONS[operation]
        question = f"What is {a} {word} {b}?"
        if question not in seen:
            yield {"id": f"arith-{len(seen):03d}", "question": question, "answer": str(result(a, b))}
            seen.add(question)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--skip", type=int, default=0, help="rows left out at the beginning")
    options = parser.parse_args()
    for row in islice(problems(), options.skip, options.skip + options.rows):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
