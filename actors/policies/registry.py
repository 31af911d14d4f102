"""Names of placement policies; modules are imported only when a policy is created."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module

from actors.policies.base import Policy

_BUILT_IN = {
    "least_loaded": "actors.policies.least_loaded:LeastLoaded",
    "longest_match": "actors.policies.longest_match:LongestMatch",
    "random": "actors.policies.draw:Draw",
    "round_robin": "actors.policies.round_robin:RoundRobin",
    "rsbcm": "actors.policies.rsbcm:Rsbcm",
    "sticky": "actors.policies.sticky:Sticky",
}
DEFAULT = "rsbcm"


def names() -> list[str]:
    return sorted(_BUILT_IN)


def check(name: str) -> str:
    """The name itself; ValueError with the nearest match and the choices if there is no such policy."""
    if name not in _BUILT_IN:
        near = get_close_matches(name, names(), 1)
        hint = f", did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown placement policy {name!r}{hint}; choices: {', '.join(names())}")
    return name


def create(name: str) -> Policy:
    """A policy by name."""
    module, _, attribute = _BUILT_IN[check(name)].partition(":")
    policy: Policy = getattr(import_module(module), attribute)()
    return policy
