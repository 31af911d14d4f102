"""Refusing resources that are not there, before anything is loaded."""

from __future__ import annotations

from orchestrator.config import Config, UsageError


def require_local_gpus(config: Config, count: int) -> None:
    """UsageError if this machine has fewer GPUs than `count` engines ask for."""
    import torch

    each = config.gpus_per_engine or 1.0
    need, have = count * each, torch.cuda.device_count()
    if need > have:
        raise UsageError(too_few("GPU", count, each, have, "this machine"))


def too_few(resource: str, count: int, each: float, have: float, where: str) -> str:
    return (
        f"{count} engines with {each:g} {resource} each need {count * each:g} {resource}, {where} has {have:g}; "
        f"use fewer engines, a smaller gpus_per_engine (a share such as 0.5 is allowed, 0 runs on CPUs), "
        f"or wait_for_resources_s on an autoscaling cluster"
    )
