"""Tasks: how rows of a data set become problems. Prompt, step boundary, answer kind and checker in one value."""

from search.tasks.base import Row, Task
from search.tasks.registry import create, names, register

__all__ = ["Row", "Task", "create", "names", "register"]
