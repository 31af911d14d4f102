"""The texts of a verification: a separate prompt around problem and answer, or a question behind the branch."""

from __future__ import annotations

from dataclasses import dataclass

from bench.workload import Job, Tokens
from engine.base import Codec
from search.prompts import ANSWER_QUESTION

_PROBLEM, _ANSWER = "\u2060PROBLEM\u2060", "\u2060ANSWER\u2060"
VERIFIER = "You check proposed answers."
SEPARATE = f"Problem:\n{_PROBLEM}\n\nProposed answer:\n{_ANSWER}\n\n{ANSWER_QUESTION}"


@dataclass(frozen=True, slots=True)
class Questions:
    """A separate prompt is opening + problem + lead + answer + closing; a continuation is branch + follow_up.

    Parts are encoded apart, so that problem and answer are the tokens that the branch has.
    """

    opening: Tokens
    lead: Tokens
    closing: str
    closing_tokens: Tokens
    follow_up: str
    follow_up_tokens: Tokens

    @classmethod
    def of(cls, codec: Codec) -> Questions:
        chat = [{"role": "system", "content": VERIFIER}, {"role": "user", "content": SEPARATE}]
        opening, _, rest = codec.render(chat).partition(_PROBLEM)
        lead, _, closing = rest.partition(_ANSWER)
        follow_up = codec.next_turn(ANSWER_QUESTION)
        return cls(
            tuple(codec.encode(opening)),
            tuple(codec.encode(lead)),
            closing,
            tuple(codec.encode(closing)),
            follow_up,
            tuple(codec.encode(follow_up)),
        )

    def shared(self, job: Job) -> Tokens:
        """What the separate prompts of all branches begin with, up to the answer."""
        return (*self.opening, *job.prefix, *self.lead)

    def own(self, answer: Tokens) -> Tokens:
        """What a separate prompt has of its own."""
        return (*answer, *self.closing_tokens)
