"""Refusing resources that are not there, before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestrator.config import Config, UsageError


def require_local_gpus(config: Config, count: int) -> None:
    """UsageError if this machine has fewer GPUs than `count` engines and the verifiers ask for."""
    import torch

    each = config.gpus_per_engine or (1.0 if config.device.startswith("cuda") else 0.0)
    have = torch.cuda.device_count()
    if gpus_needed([each] * count + config.verifier_shares) > have:
        raise UsageError(too_few_gpus(config, count, each, have, "this machine"))


def gpus_needed(shares: Sequence[float]) -> int:
    """Whole GPUs that these requests take: a share of one never spans two (first fit, the largest first)."""
    whole = sum(math.ceil(share) for share in shares if share >= 1)
    free: list[float] = []
    for share in sorted((share for share in shares if 0 < share < 1), reverse=True):
        for i, room in enumerate(free):
            if share <= room + 1e-6:
                free[i] -= share
                break
        else:
            free.append(1.0 - share)
    return whole + len(free)


def too_few_gpus(config: Config, count: int, each: float, have: float, where: str) -> str:
    """What engines and reward models need together."""
    shares = config.verifier_shares
    who = f"{count} engines with {each:g} GPU each"
    if shares:
        who += f" and {len(shares)} reward models with {shares[0]:g} each"
    return (
        f"{who} need {gpus_needed([each] * count + shares)} GPU, {where} has {have:g}; "
        f"use fewer engines, a smaller gpus_per_engine{' or verifier_gpus' if shares else ''} (a share such as 0.5 is "
        f"allowed and never spans two GPUs, 0 runs on CPUs), or wait_for_resources_s on an autoscaling cluster"
    )
