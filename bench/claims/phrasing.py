"""KV reuse on diverse phrasing, in tokens: what each way of caching reuses beyond a radix cache of prompts as given.

A caching condition is a function from groups of prompts (one group a problem, one prompt a phrasing) to the reuse of
each group; another tier joins by an entry in `conditions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.claims.intervals import bootstrap
from bench.claims.problems import Question
from bench.claims.rows import Row
from bench.workload import Tokens
from engine.base import BranchRequest, Codec, StepRule

PHRASINGS = (
    "{}",
    "Solve this problem: {}",
    "A student asks: {} What should the answer be?",
    "Please help me with the following question. {}",
    "{} Explain your reasoning briefly.",
    "I found this in a textbook and cannot do it. {}",
    "Consider the following. {} How would you proceed?",
    "Here is a puzzle for you: {} Give the result.",
)
_BESIDE = "the problem above"


@dataclass(frozen=True, slots=True)
class Reuse:
    """Tokens of prompts (less each one's last, which is always fed) and how many of them came from a cache."""

    reused: int
    total: int


Groups = Sequence[Sequence[Tokens]]
Condition = Callable[[Groups], list[Reuse]]


def as_given(codec: Codec, questions: Sequence[Question]) -> Groups:
    """The problem inside each phrasing."""
    return [[_prompt(codec, phrase.format(question.text)) for phrase in PHRASINGS] for question in questions]


def laid_out(codec: Codec, questions: Sequence[Question]) -> Groups:
    """The same phrasings, stable text first: the problem, then the phrasing that refers to it (tier `layout`)."""
    return [
        [_prompt(codec, f"{question.text}\n\n{phrase.format(_BESIDE)}") for phrase in PHRASINGS]
        for question in questions
    ]


def _prompt(codec: Codec, text: str) -> Tokens:
    return tuple(codec.encode(codec.render([{"role": "user", "content": text}])))


def radix(groups: Groups) -> list[Reuse]:
    """Token-exact baseline: the longest prefix that any earlier prompt has in common, in a trie of its own."""
    root: dict[int, Any] = {}
    held = [[_held(root, prompt[:-1]) for prompt in group] for group in groups]
    return [
        Reuse(sum(reused), sum(len(prompt) - 1 for prompt in group)) for reused, group in zip(held, groups, strict=True)
    ]


def _held(root: dict[int, Any], tokens: Tokens) -> int:
    """Length of the prefix of `tokens` that the trie has; then it has all of them."""
    node, length = root, 0
    for at, token in enumerate(tokens):
        length += token in node and length == at
        node = node.setdefault(token, {})
    return length


def engine_reuse(engine: Any) -> Condition:
    """What this project's engine reuses, as it reports it, one call a problem."""

    def reuse(groups: Groups) -> list[Reuse]:
        engine.release([event.key for event in engine.snapshot()])
        found = []
        for group in groups:
            requests = [
                BranchRequest(str(i), (prompt,), (0,), StepRule(max_tokens=1), 0.0) for i, prompt in enumerate(group)
            ]
            results = engine.expand(requests)
            errors = [result.error for result in results if result.error]
            if errors:
                raise RuntimeError(errors[0])
            reused = sum(sum(result.usage.reused.values()) for result in results)
            found.append(Reuse(reused, sum(len(prompt) - 1 for prompt in group)))
        engine.release([event.key for event in engine.snapshot()])
        return found

    return reuse


def conditions(engine: Any, codec: Codec, questions: Sequence[Question]) -> Mapping[str, tuple[Condition, Groups]]:
    """By name: how KV is cached, and the prompts it is given."""
    return {
        "exact": (engine_reuse(engine), as_given(codec, questions)),
        "layout": (engine_reuse(engine), laid_out(codec, questions)),
    }


def rows(engine: Any, codec: Codec, questions: Sequence[Question]) -> list[Row]:
    base = radix(as_given(codec, questions))
    text = "prompt tokens reused / all prompt tokens by a radix longest-prefix cache, 8 phrasings a problem as given"
    low, high = bootstrap(len(base), lambda units: share(base, units))
    found = [Row("reuse_radix", None, share(base, range(len(base))), len(base), low, high, f"{text}; {_BOOTSTRAP}")]
    for name, (reuse, groups) in conditions(engine, codec, questions).items():
        found.append(_extra(name, reuse(groups), base))
    return found


_BOOTSTRAP = "95 % bootstrap over problems"


def _extra(name: str, ours: Sequence[Reuse], base: Sequence[Reuse]) -> Row:
    """Share of tokens reused beyond the baseline, as a difference of shares."""
    extra = lambda units: share(ours, units) - share(base, units)  # noqa: E731
    low, high = bootstrap(len(base), extra)
    text = (
        f"share of prompt tokens that tier `{name}` reuses less the share of the radix baseline (its own: "
        f"{share(ours, range(len(ours))):.3f}), tokens counted by the engine; {_BOOTSTRAP}"
    )
    return Row(f"extra_reuse_{name}", 0.286, extra(range(len(base))), len(base), low, high, text)


def share(reuse: Sequence[Reuse], units: Sequence[int]) -> float:
    return sum(reuse[i].reused for i in units) / sum(reuse[i].total for i in units)
