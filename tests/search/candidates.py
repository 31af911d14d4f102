"""Paths to be judged, and verifiers to judge them."""

import asyncio
import sys

from search.ports import Candidate
from search.types import Problem
from search.verifiers.command import CommandVerifier

PROBLEM = Problem("What is 6 * 7?", reference="42")


def path(*steps, complete=False, problem=PROBLEM, node="r.0", context=((1,), (2,))):
    return Candidate(problem, node, context, steps, complete)


def score(verifier, *batch):
    return asyncio.run(verifier.score(batch))


def command(code, **options):
    return CommandVerifier([sys.executable, "-c", code], **{"timeout_s": 20.0, **options})
