"""Checkers: callables that say whether a stated answer is right. `grade` applies a problem's own, or compares.

Each is a frozen value built from a problem's reference, so that it can be sent to another process.
"""

from search.checkers.game24 import Game24
from search.checkers.grade import grade
from search.checkers.registry import create, names
from search.checkers.same import Choice, Math, Numeric
from search.checkers.text import Exact, Pattern

__all__ = ["Choice", "Exact", "Game24", "Math", "Numeric", "Pattern", "create", "grade", "names"]
