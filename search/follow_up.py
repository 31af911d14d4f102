"""Orders that ask the model something behind the path: several next steps in one reply, or a better solution.

A pool only continues token paths. `sent` puts the request behind the order's path as the user's next turn, `received`
makes the reply into what the strategy asked for.
"""

from __future__ import annotations

import re
from dataclasses import replace

from search.ports import Pool
from search.prompts import PROPOSE, REFINE
from search.types import CUT, Boundary, Expansion, Outcome, Sample

_BULLET = re.compile(r"^\s*(?:[-*•]|\(\d{1,2}\)(?!\s*[-+*/×÷^=]\s)|\d{1,2}[.):])(?:\s+|$)")


def sent(order: Expansion, pool: Pool) -> Expansion:
    """The order as the pool gets it. One reply holds all n proposals of a "propose" order, and as many tokens."""
    if order.mode == "propose":
        question = pool.follow_up(order.context, PROPOSE.format(n=order.n))
        limit = order.n * order.sampling.max_tokens
        sampling = replace(order.sampling, max_tokens=limit, boundary=Boundary.none())
        return replace(order, context=(*order.context, question), n=1, sampling=sampling)
    if order.mode == "refine":
        question = pool.follow_up(order.context, REFINE)
        return replace(order, context=(*order.context, question))
    return order


def received(order: Expansion, wire: Expansion, outcome: Outcome, pool: Pool) -> Outcome:
    """The outcome as the strategy knows it: one sample a proposal; replies behind the request they answer."""
    if order.mode == "propose":
        return replace(outcome, samples=tuple(_proposals(order, outcome, pool)))
    if order.mode == "refine":
        question = wire.context[-1]
        return replace(outcome, samples=tuple(_behind(question, sample) for sample in outcome.samples))
    return outcome


def _behind(question: tuple[int, ...], sample: Sample) -> Sample:
    text = sample.text if sample.blank else f"\n\n{sample.text}"
    return replace(sample, text=text, token_ids=(*question, *sample.token_ids), asked=len(question))


def _proposals(order: Expansion, outcome: Outcome, pool: Pool) -> list[Sample]:
    """One step a line of the reply, without bullets; a line that the token limit cut is none."""
    reply = "".join(sample.text for sample in outcome.samples)
    lines = reply.splitlines()
    if any(sample.finish in CUT for sample in outcome.samples):
        lines = lines[:-1]
    texts = [text for line in lines if (text := _BULLET.sub("", line).strip())]
    ending = order.sampling.boundary.delimiter or "\n"
    samples = []
    for i, text in enumerate(texts[: order.n]):
        step = text + ending
        samples.append(Sample(step, pool.tokens(step), "step", order.first_sample + i))
    return samples
