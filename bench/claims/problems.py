"""Problems of public sets with their true answers and how hard they are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search.answers import equivalent, extract

DATA = Path(__file__).parents[1] / "data"
FILES = {"gsm8k": "gsm8k.jsonl", "arc": "arc_challenge.jsonl"}
EASY_STEPS = 3
"""GSM8K problems with at most this many calculations in the reference solution count as easy."""

HINTS = (
    "Be brief.",
    "Work it out in your head, then answer.",
    "Check each number in the question first.",
    "Think like a careful teacher.",
    "Estimate before you decide.",
    "Beware of a trap in the wording.",
    "Look at what is asked in the last sentence.",
    "Answer as a confident expert would.",
)


@dataclass(frozen=True, slots=True)
class Question:
    """family: "gsm8k-easy", "gsm8k-hard" or "arc". kind: how an answer is read (`search.answers.extract`)."""

    family: str
    text: str
    truth: str
    kind: str

    @property
    def instruction(self) -> str:
        return f"Reply with the {'letter' if self.kind == 'choice' else 'final number'} only."

    def right(self, reply: str) -> bool:
        answer = extract(reply, self.kind)
        return answer is not None and bool(equivalent(answer, self.truth))

    def messages(self, hint: str) -> list[dict[str, str]]:
        """Stable text first, the hint last, so that branches share their prefix."""
        return [{"role": "user", "content": f"{self.text}\n\n{self.instruction} {hint}"}]


def load(folder: Path, name: str, limit: int) -> list[Question]:
    """The first `limit` problems of a set ("gsm8k" or "arc") in `folder`."""
    lines = (folder / FILES[name]).read_text(encoding="utf-8").splitlines()
    read = _gsm8k if name == "gsm8k" else _arc
    return [read(json.loads(line)) for line in lines[:limit]]


def _gsm8k(row: Mapping[str, Any]) -> Question:
    family = "gsm8k-easy" if row["steps"] <= EASY_STEPS else "gsm8k-hard"
    return Question(family, row["question"].strip(), row["final"], "number")


def _arc(row: Mapping[str, Any]) -> Question:
    choices: Sequence[str] = row["choices"]
    options = "\n".join(f"{chr(65 + i)}. {choice}" for i, choice in enumerate(choices))
    return Question("arc", f"{row['question'].strip()}\n{options}", chr(65 + row["answer"]), "choice")
