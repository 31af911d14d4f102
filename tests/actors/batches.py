"""Event batches as an engine's KV events make them."""

from actors.messages import EventBatch
from engine.base import KVEvent


def key(name):
    """A key of 16 bytes from a short name."""
    return name.ljust(16, b".")


def add(name, end=1, parent=b""):
    return KVEvent("add", key(name), key(parent), end)


def drop(name):
    return KVEvent("drop", key(name))


def sign(name, signature):
    return KVEvent("sign", key(name), signature=signature)


def batch(seq, *events, actor="a", incarnation=1, snapshot=False, **more):
    adds = [event for event in events if event.op == "add"]
    return EventBatch(
        actor,
        incarnation,
        seq,
        0.0,
        added=tuple(event.key for event in adds),
        parents=tuple(event.parent for event in adds),
        ends=tuple(event.end for event in adds),
        dropped=tuple(event.key for event in events if event.op == "drop"),
        signed=tuple((event.key, event.signature) for event in events if event.op == "sign"),
        snapshot=snapshot,
        **more,
    )
