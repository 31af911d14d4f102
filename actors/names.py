"""Names under which actors are found on a cluster: engines stand behind their index."""

from __future__ import annotations

import uuid

PREFIX = "rksc-index-"


def new_session() -> str:
    """Name of a new index: one a driver."""
    return f"{PREFIX}{uuid.uuid4().hex[:12]}"


def engine_name(session: str, engine: str) -> str:
    return f"{session}.{engine}"


def session_of(name: str) -> tuple[str, str]:
    """(index, engine) of an actor's name; no engine for the index itself."""
    session, _, engine = name.partition(".")
    return session, engine
