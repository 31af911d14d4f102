"""What a step's text tells about the path: whether it states the final answer, outside of thinking."""

from __future__ import annotations

import re

from search.answers.reply import names_answer

_THINK_TAG = re.compile(r"(</?think>)", re.IGNORECASE)


def states_final(text: str) -> bool:
    """True when the step names its final answer outside a `<think>` block."""
    return names_answer(spoken("", text))


def has_think_tag(text: str) -> bool:
    return _THINK_TAG.search(text) is not None


def spoken(before: str, step: str) -> str:
    """The part of `step` outside `<think>` blocks, given the path's text `before` it.

    A closing tag without an opening one (the chat template opened it) makes everything before it thinking.
    """
    tags = _THINK_TAG.findall(before)
    thinking = bool(tags) and tags[-1].lower() == "<think>"
    parts: list[str] = []
    for piece in _THINK_TAG.split(step):
        tag = piece.lower()
        if tag == "<think>":
            thinking = True
        elif tag == "</think>":
            parts = parts if thinking else []
            thinking = False
        elif not thinking:
            parts.append(piece)
    return "".join(parts)
