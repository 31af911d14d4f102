"""Tasks by name; a user's own class joins by `register`."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any, TypeVar

from search.tasks.base import Task

_BUILT_IN = {
    "game24": "search.tasks.game24:Game24",
    "gsm8k": "search.tasks.gsm8k:GSM8K",
    "math": "search.tasks.math:Math",
    "multiple_choice": "search.tasks.multiple_choice:MultipleChoice",
    "plain": "search.tasks.base:Task",
    "reasoning_gym": "search.tasks.reasoning_gym:ReasoningGym",
}
_REGISTERED: dict[str, type[Task]] = {}
T = TypeVar("T", bound=Task)


def register(cls: type[T]) -> type[T]:
    """Class decorator: make a task available under its `name`."""
    if cls.name == Task.name and cls is not Task:
        raise ValueError(f"task class {cls.__name__} needs a name of its own, got {cls.name!r}")
    _REGISTERED[cls.name] = cls
    return cls


def names() -> list[str]:
    return sorted({*_BUILT_IN, *_REGISTERED})


def create(name: str, **options: Any) -> Task:
    """A task by name; ValueError names the nearest one and the choices."""
    if name not in _REGISTERED and name not in _BUILT_IN:
        near = get_close_matches(name, names(), 1)
        hint = f", did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown task {name!r}{hint}; choices: {', '.join(names())}")
    if name in _REGISTERED:
        return _REGISTERED[name](**options)
    module, _, attribute = _BUILT_IN[name].partition(":")
    task: Task = getattr(import_module(module), attribute)(**options)
    return task
