"""What a choice after training can be made by: each sample's share of balanced error, log loss or calibration error.

The sums are values of ``longtail.metrics``; their parts say how certain a sum is.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from longtail._core.checks import as_tensor
from longtail._core.numerics import widen
from longtail._core.predictions import check_not_nan, find_bins, find_hits, rate_confidence
from longtail.posthoc._inputs import Labels, Scores, as_target, sample_counts, share_out, target_probabilities

__all__ = ["balanced_error_shares", "balanced_log_loss_shares", "balanced_calibration_error_shares"]


def balanced_error_shares(logits: Scores, target: Labels, sample_weight: Tensor | None = None) -> Tensor:
    """Each sample's share of the balanced error, the mean of the classes' error rates.

    Formula:
        BER = 1/K sum_y P(argmax f(x) != y | y), over the K classes that occur

    Args:
        logits: [N, C], any scores whose largest is the prediction.
        target: [N] class indices.
        sample_weight: [N] that sums to 1; None: every class that occurs counts the same.

    Returns:
        [N] float64; the sum is ``longtail.metrics.balanced_error``.

    >>> balanced_error_shares(torch.tensor([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0]]), torch.tensor([0, 0, 1])).sum()
    tensor(0.5000, dtype=torch.float64)

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (2).
    """
    scores, index, shares = _objective_inputs(logits, target, sample_weight)
    return shares * ~find_hits(scores, index)


def balanced_log_loss_shares(logits: Scores, target: Labels, sample_weight: Tensor | None = None) -> Tensor:
    """Each sample's share of the balanced log loss, the mean of the classes' cross-entropies.

    Smooth in the logits, so a holdout says more about it than about the error; but it asks for calibrated
    probabilities, and the tau that is best for these need not be best for predictions.

    Args:
        logits: [N, C].
        target: [N] class indices.
        sample_weight: [N] that sums to 1; None: every class that occurs counts the same.

    Returns:
        [N] float64; the sum is the balanced log loss.

    >>> balanced_log_loss_shares(torch.zeros(3, 2), torch.tensor([0, 0, 1])).sum().exp().round()
    tensor(2., dtype=torch.float64)

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", section 4.1, names it for the choice of tau.
    """
    scores, index, shares = _objective_inputs(logits, target, sample_weight)
    return shares * F.cross_entropy(scores, index, reduction="none").double()


def balanced_calibration_error_shares(
    logits: Scores, target: Labels, sample_weight: Tensor | None = None, num_bins: int = 15
) -> Tensor:
    """Each sample's share of the expected calibration error on balanced classes.

    Formula:
        ECE = sum_b |sum_{i in b} w[i] * (confidence[i] - correct[i])|, over equal bins b of the confidence

    Args:
        logits: [N, C].
        target: [N] class indices.
        sample_weight: [N] that sums to 1; None: every class that occurs counts the same.
        num_bins: number of bins in [0, 1].

    Returns:
        [N] float64; the sum is ``longtail.metrics.balanced_calibration_error``. A share is negative where the
        sample's own gap is against that of its bin.

    >>> balanced_calibration_error_shares(torch.zeros(2, 2), torch.tensor([0, 1])).sum()
    tensor(0., dtype=torch.float64)

    Deviates:
        Samples are weighted, so that the error is that on a balanced holdout.

    Reference:
        Guo et al. (2017), "On calibration of modern neural networks", eq. (3); Menon et al., section 4.1, names it
        for the choice of tau.
    """
    scores, index, shares = _objective_inputs(logits, target, sample_weight)
    confidence, predicted = rate_confidence(scores)
    bins = find_bins(confidence, num_bins)
    gaps = shares * (confidence.double() - (predicted == index).double())
    gap_of_bin = gaps.new_zeros(num_bins).index_add_(0, bins, gaps)
    return gaps * gap_of_bin.sign()[bins]


def _objective_inputs(logits: Scores, target: Labels, sample_weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of at least float32, class indices, and what each sample weighs."""
    scores = as_tensor(logits)
    if scores.ndim != 2 or not scores.is_floating_point():
        raise ValueError(f"logits must be floating-point [N, C]. Got {scores.dtype} {tuple(scores.shape)}.")
    check_not_nan(scores)
    index = as_target(target, scores)
    if sample_weight is not None:
        return widen(scores), index, sample_weight
    uniform = target_probabilities(None, scores.shape[1])
    return widen(scores), index, share_out(uniform, index, sample_counts(None, index))
