"""Chat prompts: stable text first (system, problem), variable text (hint) last, so that branches share their prefix."""

from __future__ import annotations

from dataclasses import dataclass

from search.types import Problem

SYSTEM = "You solve problems by careful reasoning, one short step at a time."
INSTRUCTION = (
    "Think step by step. Write each step as one short paragraph and separate the steps by a blank line. "
    "End with a line 'Answer:' followed by the final answer only."
)
STEP_QUESTION = "Is the reasoning above correct so far? Reply with Yes or No only."
ANSWER_QUESTION = "Is the final answer above correct? Reply with Yes or No only."
VALUE_STEP = "Can the reasoning above still lead to the right answer? {reply}"
VALUE_ANSWER = "Is the final answer above right? {reply}"
CHECK_SYSTEM = "You check proposed solutions of problems."
CHECK_READY = "Show me the proposed solution."
CHECK_QUESTION = "Proposed solution:\n{solution}\n\n{question}"
CONTENT_FREE = "N/A"
"""What stands for a problem and for its solution where the prior of an answer is measured."""

VOTE = (
    "{problem}\n\nHere are several ways to begin or to solve this problem. Compare them and decide which is the most "
    "promising.\n\n{choices}"
)
VOTE_READY = "I have compared them."
VOTE_QUESTION = "Is choice {i} the most promising one? Reply with Yes or No only."
PROPOSE = (
    "Do not go on yet. List {n} different possible next steps of the solution, one per line and nothing else. "
    "A step that solves the problem ends with 'Answer:' and the final answer."
)
REFINE = (
    "Check the solution above for mistakes. Then write an improved solution, "
    "and end with a line 'Answer:' followed by the final answer only."
)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Builds the messages of a problem; an empty `system` sends no system message. hint_last: ASKS tier `layout`, what
    varies between branches comes last; without it the hint opens the user's message."""

    system: str = SYSTEM
    instruction: str = INSTRUCTION
    hint_last: bool = True

    def messages(self, problem: Problem, hint: str = "") -> list[dict[str, str]]:
        stable = [problem.text.strip(), self.instruction]
        parts = [*stable, hint] if self.hint_last else [hint, *stable]
        user = {"role": "user", "content": "\n\n".join(part for part in parts if part)}
        return [{"role": "system", "content": self.system}, user] if self.system else [user]
