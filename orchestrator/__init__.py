"""Tree search for LLM reasoning on local models: `from orchestrator import Orchestrator`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.batch.job import JobOptions
    from orchestrator.batch.summary import BatchSummary
    from orchestrator.config import Config, UsageError
    from orchestrator.orchestrator import Orchestrator, SolveResult

__all__ = ["BatchSummary", "Config", "JobOptions", "Orchestrator", "SolveResult", "UsageError"]

_WHERE = {
    "BatchSummary": "batch.summary",
    "JobOptions": "batch.job",
    "Config": "config",
    "UsageError": "config",
    "Orchestrator": "orchestrator",
    "SolveResult": "orchestrator",
}


def __getattr__(name: str) -> Any:
    """Imports on first use, so that `import orchestrator` is quick."""
    if name not in _WHERE:
        raise AttributeError(f"module 'orchestrator' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"orchestrator.{_WHERE[name]}"), name)
