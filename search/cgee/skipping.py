"""CGEE level 1 within one search: puts each wave before the gate, keeps the report, and tells what happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from search.cgee.base import Contender, Draw, SkipReport, Wave
from search.cgee.calibrated import Calibrated
from search.cgee.gate import Gate, Ruling
from search.node import Node
from search.ports import Candidate, Verifier
from search.strategies.base import Strategy
from search.tree import SearchTree
from search.types import Outcome, Verdict
from search.verifiers.sound import tokens_to_score


class Tell(Protocol):
    """Called with an event's kind and data; kind "warning" has `text`."""

    def __call__(self, kind: str, **data: Any) -> None: ...


class Skipping:
    """The gate's rulings on one search. gate None: everything is verified."""

    def __init__(self, gate: Gate | None, strategy: Strategy, merged: bool, tell: Tell) -> None:
        self.report = SkipReport()
        self._gate = gate
        self._strategy = strategy
        self._merged = merged
        self._tell = tell
        self._wave: Wave | None = None
        self._ruling = Ruling()
        self._foreign: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether a wave must be put before the gate as it was drawn, and not portion by portion as it lands: the rule
        orders its branches, or was calibrated on such waves."""
        if self._gate is None:
            return False
        return self._gate.rule.scope == "wave" or isinstance(self._gate.rule, Calibrated)

    def open(self) -> None:
        """Say so, and skip nothing, if the rule cannot serve the strategy or is switched off."""
        if self._gate is not None and (why := unserved(self._gate, self._strategy) or self._gate.off):
            self._tell("warning", text=why)
            self.report += SkipReport(off=self._gate.off is not None)
            self._gate = None

    def resume(self) -> None:
        """`report` is that of an earlier process, whose audits count here too."""
        if self._gate is not None:
            self._gate.restore(self.report)

    def verdicts(
        self, tree: SearchTree, outcomes: Sequence[Outcome], verifier: Verifier, batch: Sequence[Candidate]
    ) -> list[Verdict]:
        """One verdict a candidate that stands in for the verifier's; [] if the wave must be verified."""
        if self._gate is None:
            return []
        self._wave = wave_of(tree, outcomes, self._merged)
        self._ruling = self._gate.consult(self._wave)
        skip = self._ruling.skip
        if self._ruling.foreign:
            self._foreign = self._foreign or self._ruling.foreign
            return []
        if skip is None or self._ruling.audited:
            ruling = self._ruling
            self.report += SkipReport(decisions=1, audited=int(ruling.audited), trials=int(ruling.booked))
            return []
        if len(skip.standings) != len(batch):
            raise ValueError(f"cgee rule {skip.rule!r} gave {len(skip.standings)} standings for {len(batch)} branches")
        saved = SkipReport(1, {skip.rule: 1}, len(batch), tokens_to_score(verifier, batch))
        self.report += saved
        self._tell(
            "skip", rule=skip.rule, reason=skip.reason, verifications=len(batch), verifier_tokens=saved.saved_tokens
        )
        by = f"cgee:{skip.rule}"
        return [Verdict(None, by, standing=standing, skipped=skip.reason) for standing in skip.standings]

    def verified(self, verdicts: Sequence[Verdict]) -> None:
        """What the verifier said of the wave asked about last; an audit is settled with it."""
        if self._gate is None or self._wave is None or not self._ruling.audited or self._ruling.skip is None:
            return
        was_off = self._gate.off
        flip = self._gate.audit(self._wave, self._ruling.skip, [verdict.score for verdict in verdicts])
        self.report += SkipReport(flips=int(flip or False), trials=int(flip is not None))
        self._tell("audit", rule=self._gate.rule.name, flip=flip)
        if (off := self._gate.off) and not was_off:
            self.report += SkipReport(off=True)
            self._tell("cgee_off", rule=self._gate.rule.name, text=off)
            self._tell("warning", text=off)

    def close(self) -> None:
        """Say so if no wave was one the rule is for."""
        if self._foreign and not self.report.decisions:
            self._tell("warning", text=f"cgee skipped nothing, its rule is for other waves: {'; '.join(self._foreign)}")


def unserved(gate: Gate, strategy: Strategy) -> str | None:
    """Why this strategy cannot go without scores of a wave, or None."""
    if gate.rule.scope == "tree" or getattr(strategy, "compares", "tree") == "wave":
        return None
    return (
        f"cgee rule {gate.rule.name!r} is not used: it orders the branches of one wave, and strategy {strategy.name!r} "
        f"compares scores across waves; 'agreement' serves any strategy"
    )


def wave_of(tree: SearchTree, outcomes: Sequence[Outcome], merged: bool) -> Wave:
    """The wave these outcomes bring, one contender a sample with text, in their order; not yet told to the tree."""
    contenders: list[Contender] = []
    for outcome in outcomes:
        parent = tree.node(outcome.node_id)
        before = tree.text(parent)
        contenders += (
            Contender(
                f"{parent.id}.{sample.index}",
                sample.confidence,
                tree.completes(parent, sample),
                before + sample.text,
                tree.problem.kind,
                sample.multiplicity,
            )
            for sample in outcome.samples
            if not sample.blank
        )
    finished = tuple(contender_of(tree, node) for node in tree.complete())
    draw = Draw.of([tree.asked[outcome.expansion_id] for outcome in outcomes], merged)
    return Wave(f"{tree.seed}/{outcomes[0].expansion_id}", tuple(contenders), finished, draw)


def contender_of(tree: SearchTree, node: Node) -> Contender:
    """A node of the tree as rules see it."""
    kind = tree.problem.kind
    return Contender(node.id, node.thought.confidence, node.complete, tree.text(node), kind, node.multiplicity)
