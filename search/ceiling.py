"""The most a strategy can use, known before it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Upper bounds that hold whatever the model writes and however the verifier scores it.

    expansions: engine orders. samples: continuations, each at most one node and one verification. tokens: generated.
    depth: nodes on the longest path. follow_ups: orders that put a request of ours behind the path. restated: tokens of
    steps that a reply proposed, tokenised anew.
    """

    expansions: int
    samples: int
    tokens: int
    depth: int
    follow_ups: int = 0
    restated: int = 0
