"""Class weights alpha[y]: how much a sample of each class counts in the loss."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from longtail.prior import ClassPrior

__all__ = ["balanced", "effective_number", "power"]


def balanced(prior: ClassPrior) -> Tensor:
    """The balanced loss: every class counts the same in total.

    Formula:
        alpha[y] = 1 / (C * pi[y])

    Args:
        prior: the class counts; every class needs samples or smoothing.

    Returns:
        [C] float64. A sample drawn from the prior has weight 1 on average.

    Use when:
        Classes overlap, and the model is small enough not to fit every training sample.
    Avoid when:
        The model can fit the training data: weights then hardly move its decisions. Use a margin.
    Special cases:
        ``power`` with exponent 1; ``effective_number`` as beta tends to 1.

    >>> [round(w, 3) for w in balanced(ClassPrior.from_counts([9, 1])).tolist()]
    [0.556, 5.0]

    Deviates:
        The paper's weights are 1 / pi[y]; the factor 1 / C keeps the learning rate's meaning.

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (4).
    """
    return power(prior, exponent=1.0)


def power(prior: ClassPrior, exponent: float = 0.5) -> Tensor:
    """Weights between none (exponent 0) and balanced (exponent 1).

    Formula:
        alpha[y] = pi[y]^-exponent / sum_y' pi[y']^(1 - exponent)

    Args:
        prior: the class counts; every class needs samples or smoothing.
        exponent: 0 is no weighting, 0.5 the square root, 1 the balanced loss.

    Returns:
        [C] float64. A sample drawn from the prior has weight 1 on average.

    Use when:
        Balanced weights are too rough; or as alpha = pi^(tau - 1), beside ``logit_adjusted`` with that tau, where
        the pair is consistent (exponent = 1 - tau).
    Avoid when:
        The model can fit the training data.
    Special cases:
        ``balanced`` with exponent 1.

    >>> [round(w, 3) for w in power(ClassPrior.from_counts([9, 1]), exponent=0.5).tolist()]
    [0.833, 2.5]

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", section 5.2.
    """
    if not math.isfinite(exponent):
        raise ValueError(f"power: exponent must be a finite number. Got {exponent}.")
    log_probs = prior.log_probs
    return torch.exp(-exponent * log_probs - torch.logsumexp((1 - exponent) * log_probs, dim=0))


def effective_number(prior: ClassPrior, beta: float = 0.9999) -> Tensor:
    """Class-balanced weights by the effective number of samples.

    Formula:
        alpha[y] is proportional to (1 - beta) / (1 - beta^n[y]), scaled to sum to C

    Args:
        prior: the class counts; every class needs samples.
        beta: in [0, 1); 0 is no weighting, towards 1 it becomes the inverse frequency.

    Returns:
        [C] float64 with mean 1 over classes.

    Use when:
        Deferred re-weighting (the second part of training), as LDAM-DRW does.
    Avoid when:
        Used from the first step on with a large model.
    Special cases:
        No weighting at beta = 0; proportional to ``balanced`` as beta tends to 1.

    >>> effective_number(ClassPrior.from_counts([100, 1]), beta=0.0).tolist()
    [1.0, 1.0]

    Reference:
        Cui et al. (2019), "Class-balanced loss based on effective number of samples", eq. (4).
    """
    if not 0 <= beta < 1:
        raise ValueError(f"effective_number: beta must be in [0, 1). Got {beta}.")
    prior.log_probs  # noqa: B018  (raises where a class has no samples)
    counts = prior.counts.double() + prior.pseudocount
    # 1 - beta^n without cancellation, and beta = 0 without log 0.
    effective = -torch.expm1(counts * math.log(beta)) if beta > 0 else torch.ones_like(counts)
    inverse = (1 - beta) / effective
    return inverse * (prior.num_classes / inverse.sum())
