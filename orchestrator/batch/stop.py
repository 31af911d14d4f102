"""Asking a job to pause, from any thread or a signal handler."""

from __future__ import annotations


class Stop:
    """The first reason given stays: "signal", "tokens", "seconds", "storage", or a word of the caller's."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def set(self, reason: str) -> None:
        """Pause behind the waves under way. Setting an attribute only: safe in a signal handler."""
        if self.reason is None:
            self.reason = reason
