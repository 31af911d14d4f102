"""The prior that a model has for "yes" before it has seen anything, and P(yes) without it."""

from __future__ import annotations

_LEAST = 1e-9


def without_prior(p_yes: float, prior: float) -> float:
    """P(yes) in [0, 1] after contextual calibration (Zhao et al. 2021, arXiv 2102.09690, W = diag(p_cf)^-1, b = 0).

    prior: P(yes) of the same question behind a content-free path. Both labels' probabilities are divided by their
    content-free ones and normalised, which subtracts the content-free log-odds: logit q = logit p - logit prior. So a
    path that the model likes as much as none at all gets 0.5, and no two paths change places.
    """
    prior = min(max(prior, _LEAST), 1 - _LEAST)
    yes, no = p_yes * (1 - prior), (1 - p_yes) * prior
    return yes / (yes + no)
