"""Multiple choice as in ARC (Clark et al. 2018) and MMLU (Hendrycks et al. 2021): options and a letter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from search.tasks.base import Row, Task, first_of, text_of

_LETTERS = "ABCDEFGHIJ"


@dataclass(frozen=True)
class MultipleChoice(Task):
    """Rows: `question`; `choices`, a list of texts, or ARC's {"text": [...], "label": [...]}; `answer`, an index from 0
    or a label, or `answerKey`, a label. Options are shown as A, B, C, whatever their labels are.
    """

    name: ClassVar[str] = "multiple_choice"
    instruction: str = (
        "Think step by step. Write each step as one short paragraph and separate the steps by a blank line. "
        "End with a line 'Answer:' followed by the letter of the right option only."
    )
    kind: str = "choice"

    def question(self, row: Row) -> str:
        texts, _ = _options(row)
        shown = "\n".join(f"{letter}) {text}" for letter, text in zip(_LETTERS, texts, strict=False))
        return f"{text_of(row, 'question').strip()}\n\n{shown}"

    def reference(self, row: Row) -> str | None:
        """The letter under which the right option is shown."""
        texts, labels = _options(row)
        answer = first_of(row, "answer", "answerKey")
        if answer is None:
            return None
        if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(texts):
            return _LETTERS[answer]
        if str(answer) in labels:
            return _LETTERS[labels.index(str(answer))]
        raise ValueError(f"answer {answer!r} is neither an index below {len(texts)} nor one of the labels {labels}")


def _options(row: Row) -> tuple[list[str], list[str]]:
    """Texts and labels of the options."""
    given = row.get("choices")
    texts, labels = (given.get("text"), given.get("label")) if isinstance(given, Mapping) else (given, None)
    if not isinstance(texts, list | tuple) or not 2 <= len(texts) <= len(_LETTERS):
        raise ValueError(f"needs 2 to {len(_LETTERS)} options under 'choices', got {given!r}")
    if labels is None:
        labels = _LETTERS[: len(texts)]
    if len(labels) != len(texts):
        raise ValueError(f"needs a label for each option, got {len(labels)} labels for {len(texts)} options")
    return [str(text) for text in texts], [str(label) for label in labels]
