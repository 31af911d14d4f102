"""Label tokens of a tokenizer, and what the logits at one position say of them: P(yes), or an expected value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.base import Codec

WORDS: tuple[tuple[str, str], ...] = (("Yes", "No"), ("Y", "N"), ("True", "False"), ("1", "0"))
"""Label words in the order they are tried; a pair serves if both words have a spelling that is one token."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Token ids that mean yes and no at the first position of a reply. words: the pair that they spell."""

    yes: tuple[int, ...]
    no: tuple[int, ...]
    words: tuple[str, str] = WORDS[0]

    @classmethod
    def of(cls, codec: Codec, words: Sequence[tuple[str, str]] = WORDS) -> Labels:
        """The first pair of `words` whose spellings, as single tokens, tell yes from no.

        A word of several tokens is never read by its first piece, which other replies may begin with too. ValueError
        names all that was tried.
        """
        for pair in words:
            yes, no = (_single_tokens(codec, word) for word in pair)
            if yes - no and no - yes:
                return cls(tuple(sorted(yes - no)), tuple(sorted(no - yes)), pair)
        tried = ", ".join(f"{yes!r}/{no!r}" for yes, no in words)
        raise ValueError(
            f"this tokenizer has no label words that are single tokens; tried {tried}, each also with a space in front,"
            f" in lower and in upper case; use a verifier of your own"
        )

    def p_yes(self, logits: Tensor) -> float:
        """P(yes) against P(no). logits [V]"""
        return float(torch.sigmoid(log_odds(logits[list(self.yes)], logits[list(self.no)])))


@dataclass(frozen=True, slots=True)
class Scale:
    """Labels with a value each, as the token ids that mean them at the first position of a reply."""

    ids: tuple[tuple[int, ...], ...]
    values: tuple[float, ...]

    @classmethod
    def of(cls, codec: Codec, values: Sequence[tuple[str, float]]) -> Scale:
        """Labels are compared in like spellings: those (case, a space in front) in which every one is a single token.

        Else the label that has a token for the likelier spelling would win whatever the model thinks. ValueError where
        no spelling serves, and for less than 2 labels.
        """
        labels = [label for label, _ in values]
        if len(labels) < 2:
            raise ValueError(f"a scale has at least 2 labels, got {labels}")
        found: dict[tuple[int, ...], None] = {}
        for spell in (str, str.lower, str.capitalize, str.upper):
            for space in ("", " "):
                ids = [codec.encode(space + spell(label)) for label in labels]
                if all(len(one) == 1 for one in ids) and len({one[0] for one in ids}) == len(labels):
                    found[tuple(one[0] for one in ids)] = None
        if not found:
            raise ValueError(
                f"labels {labels} are not single tokens of this tokenizer, different ones, in any spelling"
            )
        return cls(tuple(zip(*found, strict=True)), tuple(value for _, value in values))

    def expected(self, logits: Tensor) -> float:
        """Mean value of the labels, each weighed by its probability among them. logits [V]"""
        each = torch.stack([torch.logsumexp(logits[list(ids)].double(), dim=-1) for ids in self.ids])
        return float(each.softmax(-1) @ torch.tensor(self.values, dtype=each.dtype, device=each.device))


def log_odds(yes: Tensor, no: Tensor) -> Tensor:
    """log P(yes) - log P(no) [...] from the labels' logits, yes [..., Y] and no [..., M], in float64."""
    return torch.logsumexp(yes.double(), dim=-1) - torch.logsumexp(no.double(), dim=-1)


def _single_tokens(codec: Codec, word: str) -> set[int]:
    """Tokens that are a whole spelling of `word`."""
    spellings = {form for w in (word, word.lower(), word.upper()) for form in (w, f" {w}")}
    return {ids[0] for spelling in spellings if len(ids := codec.encode(spelling)) == 1}
