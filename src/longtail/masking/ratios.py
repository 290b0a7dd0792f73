"""The mathematics of partial label masking: ratios of positives, and how they follow the model's probabilities."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from longtail._core.checks import at_least, can_look_at, check_indicator, check_value_range
from longtail._core.numerics import widen
from longtail.prior import ClassPrior, check_prior

__all__ = [
    "adapt_ratio",
    "count_bins",
    "count_checked_bins",
    "divergence",
    "mask_probabilities",
    "positive_ratio",
    "standardize",
]


SMOOTHING = 1e-6
"""What ``divergence`` adds to every bin's share: small beside one sample in 100,000, and the logarithm exists."""


def positive_ratio(prior: ClassPrior) -> Tensor:
    """[C] float64, positives over negatives of each class; NaN for a class that has none of either.

    Formula:
        r[c] = n[c] / (N - n[c])

    Args:
        prior: counts of positives, and of samples; from ``ClassPrior.from_indicator`` for multi-label data.

    >>> positive_ratio(ClassPrior.from_indicator([[1, 1, 0], [0, 1, 0], [0, 1, 0]])).tolist()
    [0.5, nan, nan]

    Reference:
        Duarte et al., "PLM: Partial label masking for imbalanced multi-label classification", section 2.
    """
    check_prior(prior)
    positives = prior.counts.double()
    negatives = prior.num_samples - positives
    return torch.where((positives > 0) & (negatives > 0), positives / negatives, math.nan)


def mask_probabilities(data_ratio: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
    """With which probability a positive and a negative label of each class is kept.

    Formula:
        positive: min(1, ratio[c] / data_ratio[c]); negative: min(1, data_ratio[c] / ratio[c])

    Args:
        data_ratio: [C] positives over negatives in the data; NaN keeps everything.
        ratio: [C] the ratio wanted.

    Returns:
        Two [C]. At most one of the two is below 1.

    >>> [part.tolist() for part in mask_probabilities(torch.tensor([2.0, 0.1]), torch.tensor([1.0, 0.2]))]
    [[0.5, 1.0], [1.0, 0.5]]

    Reference:
        Duarte et al., "PLM: Partial label masking", eq. (3).
    """
    keep_positive = (ratio / data_ratio).clamp_max(1).nan_to_num(nan=1.0)
    keep_negative = (data_ratio / ratio).clamp_max(1).nan_to_num(nan=1.0)
    return keep_positive, keep_negative


def count_bins(probs: Tensor, target: Tensor, num_bins: int) -> Tensor:
    """Histograms of each class's probabilities, of its positives and its negatives apart.

    Args:
        probs: [N, C] in [0, 1].
        target: [N, C] of 0 and 1, or [N] class indices.
        num_bins: B, how many bins of equal width; bin b holds [b / B, (b + 1) / B), and the last one 1 as well.

    Returns:
        [2, C, B] int64: the negatives' histograms, then the positives'.

    >>> count_bins(torch.tensor([[0.9], [0.3], [1.0]]), torch.tensor([[1], [0], [1]]), num_bins=2).tolist()
    [[[1, 0]], [[0, 2]]]

    Reference:
        Duarte et al., "PLM: Partial label masking", eq. (4) and appendix B.
    """
    at_least(num_bins, 2, "num_bins")
    is_positive = check_indicator(probs, target)
    _check_probabilities(probs)
    return count_checked_bins(widen(probs.detach()), is_positive, num_bins)


def divergence(histogram: Tensor, target_bin: int, smoothing: float = SMOOTHING) -> Tensor:
    """How far predicted probabilities are from labels, all of which lie in one bin.

    Formula:
        KL(Q || P), with Q the histogram's shares and P all in target_bin, each as (share + s) / (1 + B * s)

    Args:
        histogram: [..., B] counts of probabilities.
        target_bin: the bin of the labels: the last one for positives, 0 for negatives.
        smoothing: s, added to the share of every bin. It is a share, not a count, so that the result does not depend
            on the number of samples.

    Returns:
        [...] in the default dtype, at least 0; NaN for a histogram without samples.

    Without smoothing the divergence is infinite as soon as one probability is in another bin. Its size grows as
    log(1 / s), the same for all classes, which ``standardize`` takes out.

    >>> divergence(torch.tensor([[0, 5], [5, 0]]), target_bin=-1).round().tolist()
    [0.0, 14.0]

    Deviates:
        The paper does not say how it avoids the infinity; additive smoothing of both distributions is ours.

    Reference:
        Duarte et al., "PLM: Partial label masking", eq. (5).
    """
    shares = histogram.to(torch.get_default_dtype())
    shares = shares / shares.sum(dim=-1, keepdim=True)
    labels = torch.zeros_like(shares)
    labels[..., target_bin] = 1
    scale = 1 + shares.shape[-1] * smoothing
    predicted, wanted = (shares + smoothing) / scale, (labels + smoothing) / scale
    return (predicted * (predicted / wanted).log()).sum(dim=-1)


def standardize(values: Tensor) -> Tensor:
    """Values minus their mean, over their standard deviation (that of a population); NaN stays and does not count.

    Formula:
        (D[c] - mu) / sigma; 0 where all values are equal

    Args:
        values: [C].

    >>> standardize(torch.tensor([1.0, 3.0, math.nan])).tolist()
    [-1.0, 1.0, nan]

    Reference:
        Duarte et al., "PLM: Partial label masking", eq. (6).
    """
    centered = values - values.nanmean()
    deviation = centered.square().nanmean().sqrt()
    # Equal values differ from their mean by rounding alone: dividing by it would make noise of size 1.
    is_spread = deviation > 8 * torch.finfo(values.dtype).eps * values.abs().nan_to_num(nan=0.0).amax()
    return torch.where(is_spread, centered / deviation, centered * 0)


def adapt_ratio(ratio: Tensor, positive_divergence: Tensor, negative_divergence: Tensor, rate: float) -> Tensor:
    """The ratio of the next epoch: larger where positives are predicted worse than negatives, as classes go.

    Formula:
        ratio[c] * exp(rate * (standardize(D_pos)[c] - standardize(D_neg)[c]))

    Args:
        ratio: [C] of this epoch.
        positive_divergence: [C] D_pos from ``divergence``; NaN: the class's ratio stays.
        negative_divergence: [C] D_neg likewise.
        rate: lambda, how fast ratios move.

    >>> adapt_ratio(torch.ones(2), torch.tensor([4.0, 1.0]), torch.tensor([1.0, 4.0]), rate=1.0).log().tolist()
    [2.0, -2.0]

    Reference:
        Duarte et al., "PLM: Partial label masking", eq. (6) and (7).
    """
    is_known = ~(positive_divergence.isnan() | negative_divergence.isnan())
    positive = standardize(torch.where(is_known, positive_divergence, math.nan))
    negative = standardize(torch.where(is_known, negative_divergence, math.nan))
    step = torch.where(is_known, positive - negative, 0.0)
    return ratio * torch.exp(rate * step)


def count_checked_bins(probs: Tensor, is_positive: Tensor, num_bins: int) -> Tensor:
    """``count_bins`` of what has been checked; NaN does not count."""
    num_classes = probs.shape[1]
    first = torch.arange(num_classes, dtype=torch.int32, device=probs.device) * num_bins
    # One number for each bin of each class of each label; int32 halves the traffic.
    cell = (probs * num_bins).int().clamp_(0, num_bins - 1).add_(first)
    cell.add_(is_positive.view(torch.uint8).int(), alpha=num_classes * num_bins)
    size = 2 * num_classes * num_bins
    if not can_look_at(probs):  # else the caller has looked for NaN
        cell.masked_fill_(probs.isnan(), size)
    flat = cell.flatten()
    if torch.compiler.is_compiling():  # a fixed shape, where bincount's depends on values
        counts = torch.zeros(size + 1, dtype=torch.int64, device=probs.device)
        counts = counts.scatter_add(0, flat.long(), torch.ones_like(flat, dtype=torch.int64))
    else:
        counts = torch.bincount(flat, minlength=size + 1)
    return counts[:size].view(2, num_classes, num_bins)


def _check_probabilities(probs: Tensor) -> None:
    if not probs.is_floating_point():
        raise TypeError(f"probabilities must be floating-point. Got {probs.dtype}.")
    check_value_range(probs, "probabilities", "in [0, 1]")
