"""How a question about a path is put to an engine: behind the path itself, or in a chat of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from search.ports import Candidate, Context, Message, Pool
from search.prompts import CHECK_QUESTION, CHECK_READY, CHECK_SYSTEM, CONTENT_FREE, ChatPrompt
from search.types import Problem

Asked = tuple[Context, str]
"""A path whose KV is held, and the text behind it, whose KV is not."""


def asking(prompt: str, pool: Pool, chat: ChatPrompt) -> Asking:
    """ "continuation": behind the branch's own KV; "separate": in a chat of its own. ValueError for another name."""
    if prompt not in ("continuation", "separate"):
        raise ValueError(f"verification has no prompt {prompt!r}; choices: continuation, separate")
    return Separate(pool) if prompt == "separate" else Continuation(pool, chat)


class Asking(Protocol):
    """One way of putting a question."""

    def about(self, candidate: Candidate, question: str) -> Asked: ...

    def about_nothing(self, question: str) -> Asked:
        """The same template with `CONTENT_FREE` for the problem and for its solution."""
        ...

    def kept(self, problem: Problem) -> Sequence[Context]:
        """Paths that are held for this problem's questions beside its branches."""
        ...


@dataclass(frozen=True, slots=True)
class Continuation:
    """The question is the user's next turn behind the branch: only its own tokens are read."""

    pool: Pool
    chat: ChatPrompt

    def about(self, candidate: Candidate, question: str) -> Asked:
        return candidate.context, self.pool.question(question)

    def about_nothing(self, question: str) -> Asked:
        prompt = self.pool.encode(self.chat.messages(Problem(CONTENT_FREE)))
        return (prompt,), CONTENT_FREE + self.pool.question(question)

    def kept(self, problem: Problem) -> Sequence[Context]:
        return ()


@dataclass(frozen=True, slots=True)
class Separate:
    """A fresh chat for each branch. The problem comes first, so that its KV is held once for all of its branches;
    the solution and the question are read anew for each one and dropped.
    """

    pool: Pool

    def about(self, candidate: Candidate, question: str) -> Asked:
        return self._problem(candidate.problem), self._solution(candidate.text, question)

    def about_nothing(self, question: str) -> Asked:
        return self._problem(Problem(CONTENT_FREE)), self._solution(CONTENT_FREE, question)

    def kept(self, problem: Problem) -> Sequence[Context]:
        return [self._problem(problem)]

    def _problem(self, problem: Problem) -> Context:
        return (self.pool.encode(problem_messages(problem)),)

    def _solution(self, text: str, question: str) -> str:
        before, asked = solution_question(text, question)
        return before + self.pool.question(asked)


def problem_messages(problem: Problem) -> list[Message]:
    """The first turn of a separate chat."""
    system = {"role": "system", "content": CHECK_SYSTEM}
    return [system, {"role": "user", "content": f"Problem:\n{problem.text.strip()}"}]


def solution_question(text: str, question: str) -> tuple[str, str]:
    """What the model says to that, and the user's second turn."""
    return CHECK_READY, CHECK_QUESTION.format(solution=text.strip(), question=question)
