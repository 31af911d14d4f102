"""Answers: what a reply states (`extract`) or a reference is (`meant`), its key, when two are the same.

A chain from cheap to dear: glyphs -> latex -> quantity / structure -> symbolic. Only the last step loads a
computer algebra system, and only on input that `bounds` admits.
"""

from search.answers.compare import canonical, equivalent
from search.answers.extract import KINDS, extract, meant

__all__ = ["KINDS", "canonical", "equivalent", "extract", "meant"]
