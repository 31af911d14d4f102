"""Yes/no label tokens of a tokenizer, and P(yes) from the logits at one position."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.base import Codec

_YES = ("Yes", " Yes", "yes", " yes", "YES")
_NO = ("No", " No", "no", " no", "NO")


@dataclass(frozen=True, slots=True)
class Labels:
    """Token ids that mean yes and no at the first position of a reply."""

    yes: tuple[int, ...]
    no: tuple[int, ...]

    @classmethod
    def of(cls, codec: Codec) -> Labels:
        """Single-token spellings only; a tokenizer without any falls back to first pieces that tell yes from no."""
        yes, no = ({ids[0] for w in words if len(ids := codec.encode(w)) == 1} for words in (_YES, _NO))
        if not yes or not no:
            yes, no = ({codec.encode(w)[0] for w in words} for words in (_YES, _NO))
        common = yes & no
        if not yes - common or not no - common:
            raise ValueError("this tokenizer has no token that tells 'Yes' from 'No'; use another verifier")
        return cls(tuple(sorted(yes - common)), tuple(sorted(no - common)))

    def p_yes(self, logits: Tensor) -> float:
        """P(yes) against P(no). logits [V]"""
        yes = torch.logsumexp(logits[list(self.yes)].double(), dim=0)
        no = torch.logsumexp(logits[list(self.no)].double(), dim=0)
        return float(torch.sigmoid(yes - no))
