"""Temperature, and the prior of unlabeled data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from longtail.posthoc._inputs import (
    FloatArray,
    Labels,
    PriorLike,
    Scores,
    as_scores,
    as_target,
    log_prior,
    prior_probabilities,
    sample_counts,
    warn_of_probabilities,
)

__all__ = ["temperature_scale", "PriorEstimate", "estimate_target_prior"]


_LARGEST_LOG_BETA = math.log(1e3)


def temperature_scale(
    logits: Scores, target: Labels, sample_weight: Tensor | FloatArray | None = None, label_smoothing: float = 0.0
) -> float:
    """The temperature that makes ``logits / temperature`` fit held-out samples best.

    Formula:
        argmin_T sum_i w[i] * -log softmax(f[i] / T)[y[i]]

    Args:
        logits: [N, C] of the model, not adjusted: the temperature comes before the adjustment.
        target: [N] class indices, with the label distribution of the training data.
        sample_weight: [N] how much each sample counts; None is 1.
        label_smoothing: in [0, 1), mixes the target with the uniform distribution. About 1 / N keeps the
            probabilities of separable samples within what N samples can say.

    Returns:
        The temperature, > 0; above 1 for an overconfident model. It is kept within a factor 1,000 of the logits' own
        spread, where targets that are always, or never, right would drive it to 0 or infinity.

    Use when:
        The model is overconfident and probabilities matter; or before ``adjust_logits`` with tau = 1.
    Avoid when:
        Only predictions matter and tau is tuned: dividing by T and multiplying tau by T are the same there.
    Special cases:
        1 for calibrated logits.

    >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [2.0, 0.0]])
    >>> round(temperature_scale(logits, torch.tensor([0, 0, 0, 1])) * math.log(3), 6)
    2.0

    Reference:
        Guo et al. (2017), "On calibration of modern neural networks", section 4.2; Menon et al., "Long-tail learning
        via logit adjustment", section 4.1, on its relation to tau.
    """
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"temperature_scale: label_smoothing must be in [0, 1). Got {label_smoothing}.")
    scores = as_scores(logits).double()
    warn_of_probabilities(scores)
    index = as_target(target, scores)
    count = sample_counts(sample_weight, index)
    if not count.any():
        raise ValueError("temperature_scale: there must be at least one sample with a weight. Got none.")
    share = count / count.sum()
    centered = scores - scores.mean(dim=1, keepdim=True)
    spread = float((share @ centered.square().mean(dim=1)).sqrt())
    if spread == 0:
        return 1.0
    scaled = centered / spread
    wanted = (1 - label_smoothing) * float(share @ scaled.gather(1, index[:, None])[:, 0])
    return spread / _inverse_temperature(scaled, share, wanted)


@dataclass(frozen=True, eq=False, slots=True)
class PriorEstimate:
    """A label distribution estimated from unlabeled samples."""

    probs: Tensor
    """[C] float64, sums to 1: the ``target_prior`` of ``adjust_logits``."""
    iterations: int
    """How many steps were taken."""
    converged: bool
    """Whether the last step moved the estimate by less than the tolerance."""


def estimate_target_prior(
    logits: Scores, prior: PriorLike, max_iterations: int = 1000, tolerance: float = 1e-6
) -> PriorEstimate:
    """The label distribution of unlabeled samples, by expectation maximization over the model's own outputs.

    Formula:
        q[i, y] is proportional to softmax(f[i])[y] * p[y] / pi[y], then p[y] = mean_i q[i, y], until p stays

    Args:
        logits: [N, C] of a model trained with plain cross-entropy, on samples from where it will be used.
        prior: the training prior; every class needs samples or smoothing.
        max_iterations: most steps to take.
        tolerance: stop when the probabilities move by less than this, in sum.

    Returns:
        The probabilities, and whether they converged.

    Use when:
        Label frequencies where the model is used are unknown, differ from those in training, and labels look the
        same there: P(x | y) has not changed.
    Avoid when:
        The model is badly calibrated (scale by the temperature first), or inputs have changed too.
    Special cases:
        The training prior, nearly, on samples from the training distribution.

    >>> prior = ClassPrior.from_counts([90, 10])
    >>> logits = torch.tensor([[9.0, 0.0], [0.0, 9.0], [0.0, 9.0], [0.0, 9.0]])
    >>> estimate_target_prior(logits, prior).probs.round(decimals=2)
    tensor([0.2500, 0.7500], dtype=torch.float64)

    Reference:
        Saerens et al. (2002), "Adjusting the outputs of a classifier to new a priori probabilities: a simple
        procedure", on unknown new priors.
    """
    if max_iterations < 1 or not tolerance > 0:
        raise ValueError(
            "estimate_target_prior: max_iterations must be at least 1 and tolerance above 0. "
            f"Got {max_iterations} and {tolerance}."
        )
    scores = as_scores(logits).double()
    warn_of_probabilities(scores)
    if len(scores) == 0:
        raise ValueError("estimate_target_prior: there must be at least one sample. Got none.")
    shifted = scores - log_prior(prior, scores.shape[1]).to(scores)
    # P(x | y) up to a factor of each row: the one thing about x that the steps use.
    likelihoods = torch.exp(shifted - shifted.max(dim=1, keepdim=True).values)
    probs = prior_probabilities(prior, scores.shape[1], "prior").to(scores)
    iterations, moved = 0, math.inf
    while moved >= tolerance and iterations < max_iterations:
        updated = probs * ((1 / (likelihoods @ probs)) @ likelihoods) / len(scores)
        moved = float((updated - probs).abs().sum())
        probs = updated
        iterations += 1
    return PriorEstimate((probs / probs.sum()).cpu(), iterations, moved < tolerance)


def _inverse_temperature(scaled: Tensor, share: Tensor, wanted: float) -> float:
    """The beta at which the softmax of beta * scaled expects the score wanted: the root of a rising function."""
    from scipy.optimize import brentq  # loads for half a second, where all else here is there at once

    def excess(log_beta: float) -> float:
        probs = (math.exp(log_beta) * scaled).softmax(dim=1)
        # For separable samples the gap reaches 0 by rounding alone: the root is where it comes this near.
        return float(share @ (probs * scaled).sum(dim=1)) - wanted + 1e-15

    low, high = -_LARGEST_LOG_BETA, _LARGEST_LOG_BETA
    if excess(low) >= 0:
        return math.exp(low)
    return math.exp(high if excess(high) <= 0 else brentq(excess, low, high, xtol=1e-13, rtol=1e-13))
