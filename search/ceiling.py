"""The most a strategy can use, known before it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Upper bounds that hold whatever the model writes and however the verifier scores it.

    expansions: engine orders. samples: continuations, each at most one node and one verification. tokens: generated.
    depth: nodes on the longest path.
    """

    expansions: int
    samples: int
    tokens: int
    depth: int
