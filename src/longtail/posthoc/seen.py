"""The prior that a model has seen in training, after weights, resampling or margins, and how to leave it."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from longtail._core.checks import as_tensor
from longtail._core.labels import label_array
from longtail.margins import Margins, is_shift
from longtail.posthoc._inputs import FloatArray, PriorLike, log_prior, prior_probabilities
from longtail.prior import ClassPrior

__all__ = ["correct_probabilities", "drawn_prior", "margin_prior", "weighted_prior"]

ROW_SUM_TOLERANCE = 1e-2
"""How far probabilities that were stored in half precision may be from a sum of 1."""


def weighted_prior(prior: PriorLike, class_weights: Any) -> Tensor:
    """The prior that a model trained with class weights has seen.

    Formula:
        seen[y] is proportional to class_weights[y] * pi[y]

    Args:
        prior: the prior of the data, as counts or [C] probabilities.
        class_weights: [C] above 0, what a sample of each class counted in the loss.

    Returns:
        [C] float64 that sum to 1: ``adjust_logits`` and ``correct_probabilities`` take it as the training prior.

    Use when:
        A model was trained with ``class_weight``, ``scale_pos_weight`` or weights of ``longtail.weights``.
    Avoid when:
        The model fits every training sample: weights then hardly reach its probabilities, and taking them back would
        take back what was never done. A holdout tells.
    Special cases:
        Uniform for balanced weights; the prior itself for equal weights.

    >>> weighted_prior(ClassPrior.from_counts([90, 10]), [1.0, 9.0])
    tensor([0.5000, 0.5000], dtype=torch.float64)

    Reference:
        Elkan (2001), "The foundations of cost-sensitive learning", theorem 2, on weights as a change of the prior.
    """
    weights = as_tensor(class_weights).to("cpu", torch.float64)
    is_positive = torch.isfinite(weights) & (weights > 0)
    if weights.ndim != 1 or not bool(is_positive.all()):
        raise ValueError(f"class_weights must be [C] finite numbers above 0. Got {class_weights!r}.")
    num_classes = prior.num_classes if isinstance(prior, ClassPrior) else len(as_tensor(prior))
    if len(weights) != num_classes:
        raise ValueError(f"class_weights must be one for each of {num_classes} classes. Got {len(weights)}.")
    seen = weights * prior_probabilities(prior, num_classes, "prior")
    return seen / seen.sum()


def margin_prior(prior: PriorLike, margins: Margins) -> Tensor:
    """The prior that the logits of a model trained with a logit-adjusted loss stand for.

    Formula:
        seen[y] is proportional to pi[y] * exp(-negative[y])

    Args:
        prior: the prior of the data, as counts or [C] probabilities.
        margins: of the loss, with positive[y] = -negative[y], which are a shift of the logits.

    Returns:
        [C] float64 that sum to 1.

    Use when:
        Probabilities of a model trained with such a loss are wanted at the true, or any other, prior.
    Avoid when:
        Margins are of another kind, as adaptive ones: logits then stand for no prior, and it raises.
    Special cases:
        Uniform for ``logit_adjusted`` with tau = 1; the prior itself at tau = 0.

    >>> from longtail.margins import logit_adjusted
    >>> prior = ClassPrior.from_counts([90, 10])
    >>> margin_prior(prior, logit_adjusted(prior))
    tensor([0.5000, 0.5000], dtype=torch.float64)

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (10).
    """
    if not is_shift(margins):
        raise ValueError(
            "margins must be a shift of the logits, positive = -negative, to stand for a prior. Got others; "
            "fit bias_corrected_temperature on a holdout instead."
        )
    return (log_prior(prior, margins.num_classes) - margins.negative.cpu().double()).softmax(dim=0)


def drawn_prior(labels: Any, sampler: Iterable[int], num_classes: int | None = None) -> ClassPrior:
    """The counts that a model has seen in one epoch of a sampler.

    Args:
        labels: what ``ClassPrior.from_labels`` takes, of the data set that is sampled.
        sampler: indices into it: any of ``longtail.sampling`` or of ``torch.utils.data``. Samplers of the library
            are left at the epoch they are at.
        num_classes: how many classes there are; default: the largest label + 1.

    Use when:
        A model was trained on batches of other class frequencies than the data's.
    Avoid when:
        The rates change from epoch to epoch: the last ones are nearer to what a model stands for than the first.
    Special cases:
        The prior of the labels for a sampler that gives every index once.

    >>> drawn_prior([0, 0, 0, 1], [0, 3]).probs
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    array = label_array(labels)
    indices = np.fromiter(copy.copy(sampler), dtype=np.int64)
    return ClassPrior.from_labels(array[indices], int(array.max()) + 1 if num_classes is None else num_classes)


@overload
def correct_probabilities(probabilities: Tensor, seen_prior: PriorLike, target_prior: PriorLike) -> Tensor: ...


@overload
def correct_probabilities(
    probabilities: FloatArray, seen_prior: PriorLike, target_prior: PriorLike
) -> FloatArray: ...


def correct_probabilities(
    probabilities: Tensor | FloatArray, seen_prior: PriorLike, target_prior: PriorLike
) -> Tensor | FloatArray:
    """Probabilities of a model, moved from the prior that it has seen in training to another one.

    Formula:
        q[y] is proportional to p[y] * target[y] / seen[y]

    Args:
        probabilities: [N, C] with rows that sum to 1; a tensor or an array.
        seen_prior: what training showed: ``weighted_prior``, ``margin_prior``, ``drawn_prior``, or counts.
        target_prior: the prior to be right for: of the data before it was weighted or resampled, or any other.

    Returns:
        [N, C] of the type, dtype and device given. A probability of 0 stays 0.

    Use when:
        A model was trained on weighted or resampled data, and its probabilities are to be taken at their word.
    Avoid when:
        Only the order of samples within one class matters: it hardly changes. Of two classes it does not change.
    Special cases:
        The probabilities themselves where both priors are the same; the softmax of ``adjust_logits`` with tau = 1.

    >>> correct_probabilities(np.array([[0.5, 0.5]]), np.array([0.5, 0.5]), np.array([0.9, 0.1]))
    array([[0.9, 0.1]])

    Reference:
        Saerens et al. (2002), "Adjusting the outputs of a classifier to new a priori probabilities: a simple
        procedure", eq. (2.4); Elkan (2001), theorem 2, for two classes.
    """
    values = _check_probabilities(as_tensor(probabilities))
    num_classes = values.shape[1]
    seen = log_prior(seen_prior, num_classes).to(values.device)
    ratio = prior_probabilities(target_prior, num_classes, "target_prior").to(values.device) / seen.exp()
    moved = values.double() * ratio
    totals = moved.sum(dim=1, keepdim=True)
    if not bool((totals > 0).all()):
        row = int(totals[:, 0].argmin())
        raise ValueError(
            f"every row must leave some class possible under the target. Got row {row}, whose classes have 0 there."
        )
    corrected = (moved / totals).to(values.dtype)
    return corrected if isinstance(probabilities, Tensor) else corrected.numpy()


def _check_probabilities(values: Tensor) -> Tensor:
    if values.ndim != 2 or not values.is_floating_point():
        raise ValueError(f"probabilities must be floating-point [N, C]. Got {values.dtype} {tuple(values.shape)}.")
    if not bool((values >= 0).all()):  # also where one is NaN
        raise ValueError("probabilities must be at least 0. Got less, or NaN.")
    sums = values.double().sum(dim=1)
    if len(sums) and not bool(((sums - 1).abs() <= ROW_SUM_TOLERANCE).all()):
        row = int((sums - 1).abs().argmax())
        raise ValueError(f"probabilities of a row must sum to 1. Got {float(sums[row]):g} in row {row}.")
    return values
