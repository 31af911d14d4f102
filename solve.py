"""Solve problems from a laptop or on a cluster:

    python solve.py "What is 3 + 4 * 2?" --strategy mcts --engines 2
    ray submit cluster.yaml solve.py -- "'What is 3 + 4 * 2?'" --strategy mcts
    ray job submit --working-dir . -- python solve.py problems.jsonl --json

Takes the arguments of `python -m orchestrator solve`; attaches to a running Ray cluster when there is one.
"""

import sys

from orchestrator.cli import main

if __name__ == "__main__":
    main(["solve", *sys.argv[1:]])
