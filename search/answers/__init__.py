"""Answers: what a reply states (`extract`), its key (`canonical`), when two are the same (`equivalent`).

A chain from cheap to dear: glyphs -> latex -> quantity / structure -> symbolic. Only the last step loads a
computer algebra system, and only on input that `bounds` admits.
"""

from search.answers.compare import canonical, equivalent
from search.answers.extract import KINDS, extract

__all__ = ["KINDS", "canonical", "equivalent", "extract"]
