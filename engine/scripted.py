"""ScriptedEngine: replies from a table or a function, with call and token counters. For tests, the user's too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from engine.base import Branch
from engine.text_engine import TextEngine

Script = Callable[[tuple[str, ...], int], "str | Branch"]


class ScriptedEngine(TextEngine):
    """script(path texts below the prompt, samples this path had before) -> text to the model's end, or a Branch.

    A sequence of texts serves every path in turn. judge(path texts below the prompt, question) -> P(yes), or 0.5.
    An exception raised by the script is the engine's failure.
    """

    def __init__(
        self,
        script: Script | Sequence[str],
        judge: Callable[[tuple[str, ...], str], float] | None = None,
        capabilities: frozenset[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(fingerprint="factory", **options)
        self._script = script if callable(script) else _cycle(script)
        self._judge = judge or (lambda path, question: 0.5)
        self._served: Counter[tuple[str, ...]] = Counter()
        self.prompts: list[str] = []
        if capabilities is not None:
            self.capabilities = capabilities

    def write(self, path: tuple[str, ...], stream: int) -> str | Branch:
        served = self._served[path]
        self._served[path] += 1
        self.prompts.append(path[0])
        return self._script(path[1:], served)

    def judge(self, path: tuple[str, ...], question: str) -> float:
        return self._judge(path[1:], question)


def _cycle(texts: Sequence[str]) -> Script:
    return lambda path, served: texts[served % len(texts)]
