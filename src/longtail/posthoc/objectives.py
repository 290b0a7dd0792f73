"""What a choice after training can be made by: balanced error, log-loss and calibration."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from longtail.posthoc._inputs import (
    Labels,
    Scores,
    as_labels,
    as_tensor,
    sample_counts,
    target_probabilities,
    weights_of_classes,
    widen,
)

__all__ = ["balanced_error", "balanced_log_loss", "balanced_calibration_error"]


def balanced_error(logits: Scores, labels: Labels, weights: Tensor | None = None) -> Tensor:
    """Each sample's share of the balanced error, the mean of the classes' error rates.

    Formula:
        BER = 1/K sum_y P(argmax f(x) != y | y), over the K classes that occur

    Args:
        logits: [N, C], any scores whose largest is the prediction.
        labels: [N] class indices.
        weights: [N] that sum to 1; None: every class that occurs counts the same.

    Returns:
        [N] float64; the sum is the balanced error.

    >>> balanced_error(torch.tensor([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0]]), torch.tensor([0, 0, 1])).sum()
    tensor(0.5000, dtype=torch.float64)

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (2).
    """
    scores, index, shares = _objective_inputs(logits, labels, weights)
    return shares * (scores.argmax(dim=1) != index)


def balanced_log_loss(logits: Scores, labels: Labels, weights: Tensor | None = None) -> Tensor:
    """Each sample's share of the balanced log loss, the mean of the classes' cross-entropies.

    Smooth in the logits, so a holdout says more about it than about the error; but it asks for calibrated
    probabilities, and the tau that is best for these need not be best for predictions.

    Args:
        logits: [N, C].
        labels: [N] class indices.
        weights: [N] that sum to 1; None: every class that occurs counts the same.

    Returns:
        [N] float64; the sum is the balanced log loss.

    >>> balanced_log_loss(torch.zeros(3, 2), torch.tensor([0, 0, 1])).sum().exp().round()
    tensor(2., dtype=torch.float64)

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", section 4.1, names it for the choice of tau.
    """
    scores, index, shares = _objective_inputs(logits, labels, weights)
    return shares * F.cross_entropy(scores, index, reduction="none").double()


def balanced_calibration_error(
    logits: Scores, labels: Labels, weights: Tensor | None = None, bins: int = 15
) -> Tensor:
    """Each sample's share of the expected calibration error on balanced classes.

    Formula:
        ECE = sum_b |sum_{i in b} w[i] * (confidence[i] - correct[i])|, over equal bins b of the confidence

    Args:
        logits: [N, C].
        labels: [N] class indices.
        weights: [N] that sum to 1; None: every class that occurs counts the same.
        bins: number of bins in [0, 1].

    Returns:
        [N] float64; the sum is the calibration error. A share is negative where the sample's own gap is against
        that of its bin.

    >>> balanced_calibration_error(torch.zeros(2, 2), torch.tensor([0, 1])).sum()
    tensor(0., dtype=torch.float64)

    Deviates:
        Samples are weighted, so that the error is that on a balanced holdout.

    Reference:
        Guo et al. (2017), "On calibration of modern neural networks", eq. (3); Menon et al., section 4.1, names it
        for the choice of tau.
    """
    if bins < 1:
        raise ValueError(f"balanced_calibration_error: bins must be at least 1. Got {bins}.")
    scores, index, shares = _objective_inputs(logits, labels, weights)
    confidence, predicted = scores.softmax(dim=1).max(dim=1)
    gaps = shares * (confidence.double() - (predicted == index).double())
    bin_of = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gap_of_bin = gaps.new_zeros(bins).index_add_(0, bin_of, gaps)
    return gaps * gap_of_bin.sign()[bin_of]


def _objective_inputs(logits: Scores, labels: Labels, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    scores = as_tensor(logits)
    if scores.ndim != 2 or not scores.is_floating_point():
        raise ValueError(f"logits must be floating-point [N, C]. Got {scores.dtype} {tuple(scores.shape)}.")
    index = as_labels(labels, scores)
    if weights is not None:
        return widen(scores), index, weights
    uniform = target_probabilities(None, scores.shape[1])
    return widen(scores), index, weights_of_classes(index, sample_counts(None, index), uniform)
