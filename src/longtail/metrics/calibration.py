"""Whether confidence is accuracy: over all samples, and balanced over classes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from longtail._core.predictions import find_bins, rate_confidence, take_counted

__all__ = [
    "Reliability",
    "bin_confidences",
    "balance_bins",
    "reliability",
    "reliability_from_counts",
    "calibration_error",
    "calibration_error_from_counts",
    "balanced_calibration_error",
    "balanced_calibration_error_from_counts",
]


class Reliability(NamedTuple):
    """The rows of a reliability diagram, one per bin of confidence, equally wide from 0 to 1."""

    confidence: Tensor
    """[B] float64, the mean confidence of the bin's samples; NaN if it has none."""
    accuracy: Tensor
    """[B] float64, the share of them that is right; NaN if there are none."""
    share: Tensor
    """[B] float64, the bin's share of all samples (of all weight, where classes are balanced)."""


def bin_confidences(
    logits: Tensor, target: Tensor, num_bins: int = 15, *, by_class: bool = False, ignore_index: int = -100
) -> tuple[Tensor, Tensor, Tensor]:
    """Sort samples into bins by the softmax probability of their predicted class.

    Bin b holds confidences in (b / B, (b + 1) / B].

    Args:
        logits: [N, C]. For probabilities pass their logarithm.
        target: [N] class indices.
        num_bins: B.
        by_class: whether to keep the samples of each true class apart.
        ignore_index: a sample with this target does not count.

    Returns:
        Right samples (int64), samples (int64) and summed confidences (float64) of each bin: three [B], or with
        ``by_class`` three [C, B].

    >>> logits = torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log()
    >>> hits, counts, confidences = bin_confidences(logits, torch.tensor([0, 1]), num_bins=2)
    >>> hits.tolist(), counts.tolist(), [round(c, 3) for c in confidences.tolist()]
    ([0, 1], [0, 2], [0.0, 1.5])
    """
    if logits.ndim != 2:
        raise ValueError(f"calibration needs logits [N, C]. Got shape {tuple(logits.shape)}.")
    logits, target, num_classes = take_counted(logits, target, None, ignore_index)
    confidence, predicted = rate_confidence(logits)
    cell = find_bins(confidence, num_bins)
    shape = (num_classes, num_bins) if by_class else (num_bins,)
    if by_class:
        cell += target * num_bins
    size = num_bins * num_classes if by_class else num_bins
    confidences = confidence.new_zeros(size, dtype=torch.float64).index_add_(0, cell, confidence.double())
    counts = torch.bincount(cell, minlength=size)
    hits = torch.bincount(cell[predicted == target], minlength=size)
    return hits.view(shape), counts.view(shape), confidences.view(shape)


def balance_bins(hits: Tensor, counts: Tensor, confidences: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The bins of all classes together, every class with samples counting the same.

    Args:
        hits: [C, B] from ``bin_confidences`` by class.
        counts: [C, B] likewise.
        confidences: [C, B] likewise.

    Returns:
        Three [B] float64: the same sums with samples weighted by 1 / n[y].

    >>> counts = torch.tensor([[0, 3], [1, 0]])
    >>> balance_bins(counts, counts, counts.double())[1].tolist()
    [1.0, 1.0]
    """
    # A class without samples has nothing but zeros to weight.
    weights = 1 / counts.sum(dim=1).clamp_min(1).double()
    return weights @ hits.double(), weights @ counts.double(), weights @ confidences


def reliability(logits: Tensor, target: Tensor, num_bins: int = 15, *, ignore_index: int = -100) -> Reliability:
    """The rows of the reliability diagram of the predicted class.

    Args:
        logits: [N, C]. For probabilities pass their logarithm.
        target: [N] class indices.
        num_bins: B.
        ignore_index: a sample with this target does not count.

    >>> logits = torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log()
    >>> reliability(logits, torch.tensor([0, 1]), num_bins=2).accuracy.tolist()
    [nan, 0.5]
    """
    return reliability_from_counts(*bin_confidences(logits, target, num_bins, ignore_index=ignore_index))


def reliability_from_counts(hits: Tensor, counts: Tensor, confidences: Tensor) -> Reliability:
    """``reliability`` of what ``bin_confidences`` counted, or ``balance_bins`` weighted: three [B].

    >>> rows = reliability_from_counts(torch.tensor([0, 3]), torch.tensor([0, 4]), torch.tensor([0.0, 3.0]))
    >>> rows.accuracy.tolist()
    [nan, 0.75]
    """
    weight = counts.double()
    return Reliability(confidences.double() / weight, hits.double() / weight, weight / weight.sum())


def calibration_error(logits: Tensor, target: Tensor, num_bins: int = 15, *, ignore_index: int = -100) -> Tensor:
    """The expected calibration error: how far confidence and accuracy lie apart, on average.

    Formula:
        sum_b share[b] * |accuracy[b] - confidence[b]|

    Args:
        logits: [N, C]. For probabilities pass their logarithm.
        target: [N] class indices.
        num_bins: B.
        ignore_index: a sample with this target does not count.

    Returns:
        A scalar in [0, 1]; NaN without samples.

    >>> logits = torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log()
    >>> round(calibration_error(logits, torch.tensor([0, 1]), num_bins=2).item(), 6)
    0.25

    Reference:
        Guo et al. (2017), "On calibration of modern neural networks", eq. (3).
    """
    return calibration_error_from_counts(*bin_confidences(logits, target, num_bins, ignore_index=ignore_index))


def calibration_error_from_counts(hits: Tensor, counts: Tensor, confidences: Tensor) -> Tensor:
    """``calibration_error`` of what ``bin_confidences`` counted, or ``balance_bins`` weighted: three [B].

    >>> calibration_error_from_counts(torch.tensor([0, 2]), torch.tensor([2, 2]), torch.tensor([0.5, 1.5])).item()
    0.25
    """
    return (hits.double() - confidences.double()).abs().sum() / counts.double().sum()


def balanced_calibration_error(
    logits: Tensor, target: Tensor, num_bins: int = 15, *, ignore_index: int = -100
) -> Tensor:
    """``calibration_error`` with every true class counting the same.

    Formula:
        sum_b share[b] * |accuracy[b] - confidence[b]|, a sample of class y weighing 1 / n[y]

    Args:
        logits: [N, C]. For probabilities pass their logarithm.
        target: [N] class indices.
        num_bins: B.
        ignore_index: a sample with this target does not count.

    Returns:
        A scalar in [0, 1]; NaN without samples.

    >>> logits = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1]]).log()
    >>> round(balanced_calibration_error(logits, torch.tensor([0, 0, 1]), num_bins=2).item(), 6)
    0.4

    Deviates:
        The reference weights samples alike; the weights are those of the balanced error.

    Reference:
        Guo et al. (2017), "On calibration of modern neural networks", eq. (3).
    """
    return balanced_calibration_error_from_counts(
        *bin_confidences(logits, target, num_bins, by_class=True, ignore_index=ignore_index)
    )


def balanced_calibration_error_from_counts(hits: Tensor, counts: Tensor, confidences: Tensor) -> Tensor:
    """``balanced_calibration_error`` of what ``bin_confidences`` counted by class: three [C, B].

    >>> counts = torch.tensor([[0, 2], [0, 1]])
    >>> hits, confidences = torch.tensor([[0, 2], [0, 0]]), torch.tensor([[0.0, 1.8], [0.0, 0.9]])
    >>> round(balanced_calibration_error_from_counts(hits, counts, confidences.double()).item(), 6)
    0.4
    """
    return calibration_error_from_counts(*balance_bins(hits, counts, confidences))
