"""What an engine computes on: engines that share it slow each other down, which placement has to know."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def hardware(device: torch.device, threads: int) -> dict[str, Any]:
    """Of an engine on `device` that takes `threads` CPU threads if that is the CPU.

    hardware: equal for engines on the same GPU or the same CPU cores, whatever process they are in; a container
    with a quota has its cores for itself.
    slots: engines that it bears at once without slowing any: one on a GPU, on CPUs as many as there are cores for.
    """
    if device.type == "cuda":
        return {"hardware": f"cuda {torch.cuda.get_device_properties(device).uuid}", "slots": 1}
    machine = _BOOT.read_text().strip() if _BOOT.is_file() else os.uname().nodename
    if device.type != "cpu":
        return {"hardware": f"{device} {machine}", "slots": 1}
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    name, count = f"cpu {machine} {_spans(cores)}", len(cores)
    if (quota := _quota()) is not None and quota < count:  # a container's own, whoever else has these cores
        name, count = f"{name} {os.uname().nodename}", quota
    return {"hardware": name, "slots": max(count // max(threads, 1), 1)}


def _quota() -> int | None:
    """Cores' worth of time that this container may take; None without a bound."""
    try:
        quota, period = _QUOTA.read_text().split()
        return int(quota) // int(period)
    except (OSError, ValueError):
        return None


def _spans(numbers: list[int]) -> str:
    """Sorted numbers as `0-3,8`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
