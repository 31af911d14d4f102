"""An engine's side of RSBCM's eviction: how short of memory it is, and decisions by its own books."""

from __future__ import annotations

from collections.abc import Sequence

from engine.eviction import Omega
from engine.kv_tree import KVTree
from engine.residency import Evictor


def pressure(tree: KVTree, bytes_per_token: int) -> tuple[int, int, int] | None:
    """(bytes used on the device, most bytes allowed, bytes a token) of an engine that takes proposals.

    That is one with a budget and the policy `omega`: who chose another policy wants no omega of the cluster's either.
    """
    if tree.limit is None or not isinstance(tree.policy, Omega):
        return None
    return tree.device.nbytes, tree.limit, bytes_per_token


def follow(tree: KVTree, keys: Sequence[bytes]) -> list[bytes]:
    """Move the segments that end at these keys off the device, in order; returns those that must stay.

    A segment stays while it has readers or anything on the device below it. Unknown keys are ignored.
    """
    evictor = Evictor(tree)
    refused = []
    for key in keys:
        segment = tree.find(key)
        if segment is not None and not evictor.move_out(segment):
            refused.append(key)
    tree.enforce_budget()
    return refused
