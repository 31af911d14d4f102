"""Tier `semantic`, the paper's rule: a branch whose sigma reaches tau takes another root's KV instead of its own.

sigma_b = sum_l w_l cos(h_l(branch suffix), h_l(root)) / sum_l w_l, w_l = exp(alpha l / L) (arXiv 2606.09937). The
suffix has to be run, on the KV that both share, before sigma is known: what is saved is memory, not computing. Tokens
that differ may well give a sigma near 1, so the tier is off unless asked for by name.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.admission import Admission, Claim, spans_of
from engine.asks.audit import Audit, compare
from engine.asks.options import Asks
from engine.asks.signature import signature
from engine.asks.states import States, look
from engine.kv_segment import Segment
from engine.packed import Forward
from engine.sketch import nearness

logger = logging.getLogger(__name__)

_ROOTS = 256


def sigma(branch: Tensor, root: Tensor, alpha: float) -> float:
    """Weighted cosine of hidden states [L, hidden], layer by layer; later layers weigh more."""
    layers = branch.shape[0]
    weights = torch.exp(alpha * torch.arange(1, layers + 1) / layers)
    cosines = torch.nn.functional.cosine_similarity(branch.float().cpu(), root.float().cpu(), dim=-1)
    return float((weights * cosines).sum() / weights.sum())


@dataclass(slots=True)
class Semantic:
    """tau: least sigma. Counts: substituted and independent branches. sigmas: the latest, for the record."""

    options: Asks
    tau: float
    forward: Forward
    admission: Admission
    audit: Audit
    substituted: int = 0
    independent: int = 0
    sigmas: list[float] = field(default_factory=list)
    _roots: OrderedDict[tuple[int, ...], bytes] = field(default_factory=OrderedDict)

    def substitute(self, claim: Claim, path: tuple[int, ...]) -> bool:
        """Whether the claim, whose missing tokens are computed, takes a root's KV instead; then they are dropped.

        path: the claim's, and the token that follows.
        """
        row = claim.computing
        if row is None or claim.approximate or not self.audit.on:
            return False
        near = self._nearest(path, signature(row.seen(0)))
        if near is None:
            return False
        tree = self.admission.tree
        end = tree.reach(near[:-1])
        tree.pin(end)
        taken = False
        try:
            taken = self._accepted(claim, path, end, near[-1])
        finally:
            tree.unpin(claim.pin if taken else end)
        if taken:
            claim.pin, claim.computing, claim.missing, claim.stored = end, None, 0, False
        return taken

    def _accepted(self, claim: Claim, path: tuple[int, ...], end: Segment, following: int) -> bool:
        """Whether the pinned root that ends at `end`, with `following` behind it, may stand in for the claim's KV."""
        row = claim.computing
        mine = look(self.forward, self.admission, row.seen(0), path[-1]) if row else None
        root = look(self.forward, self.admission, spans_of(end), following)
        if mine is None or root is None or not self._reaches(mine, root) or not self._fits(claim):
            return False
        self.substituted += 1
        self._check(claim, end, mine, path[-1])
        return True

    def note_root(self, path: tuple[int, ...], end: Segment) -> None:
        """The KV of a prompt is held: later branches may be near it."""
        if path not in self._roots:
            self._roots[path] = signature(spans_of(end))
            while len(self._roots) > _ROOTS:
                self._roots.popitem(last=False)

    def stats(self) -> dict[str, object]:
        return {
            "semantic_substituted": self.substituted,
            "semantic_independent": self.independent,
            "semantic_sigma": self.sigmas[-1] if self.sigmas else None,
            **self.audit.stats(),
        }

    def _nearest(self, path: tuple[int, ...], mark: bytes) -> tuple[int, ...] | None:
        """The held root, other than `path` itself, whose signature is nearest."""
        tree = self.admission.tree
        held = [root for root in self._roots if root != path and tree.held(root[:-1]) == len(root) - 1]
        return max(held, key=lambda root: nearness(self._roots[root], mark), default=None)

    def _reaches(self, mine: States, root: States) -> bool:
        found = sigma(mine.hidden, root.hidden, self.options.alpha)
        self.sigmas = [*self.sigmas[-99:], found]
        if found >= self.tau:
            return True
        self.independent += 1
        logger.info(
            "ASKS semantic: sigma %.4f is below tau %.4f, the branch is computed independently", found, self.tau
        )
        return False

    def _fits(self, claim: Claim) -> bool:
        """Whether the root's pinned path fits beside everything admitted."""
        limit = self.admission.tree.limit
        admitted = sum(other.nbytes for other in self.admission.claims) - claim.missing
        return limit is None or self.admission.tree.device.pinned + admitted <= limit

    def _check(self, claim: Claim, end: Segment, mine: States, following: int) -> None:
        if not self.audit.due(end.key + claim.pin.key):
            return
        reused = look(self.forward, self.admission, spans_of(end), following)
        if reused is None:
            self.audit.skipped += 1
        else:
            self.audit.note(compare(mine.logits, reused.logits))
