"""Whether confidence is accuracy: over all samples, and balanced over classes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from longtail.metrics._base import check_positive, classes_without_samples, counted_samples, synced

__all__ = [
    "Reliability",
    "bin_confidences",
    "balanced_bins",
    "reliability",
    "calibration_error",
    "CalibrationError",
    "BalancedCalibrationError",
]


class Reliability(NamedTuple):
    """The rows of a reliability diagram, one a bin of confidence, equally wide from 0 to 1."""

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
        Samples (int64), right ones (int64) and summed confidences (float64) of each bin: three [B], or with
        ``by_class`` three [C, B].

    >>> logits = torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log()
    >>> counts, hits, confidences = bin_confidences(logits, torch.tensor([0, 1]), num_bins=2)
    >>> counts.tolist(), hits.tolist(), [round(c, 3) for c in confidences.tolist()]
    ([0, 2], [0, 1], [0.0, 1.5])
    """
    if logits.ndim != 2:
        raise ValueError(f"calibration needs logits [N, C]. Got shape {tuple(logits.shape)}.")
    check_positive("num_bins", num_bins)
    num_classes = logits.shape[1]
    logits, target = counted_samples(logits, target, num_classes, ignore_index)
    confidence, predicted = _top_confidence(logits)
    cell = ((confidence * num_bins).ceil().long() - 1).clamp(0, num_bins - 1)
    shape = (num_classes, num_bins) if by_class else (num_bins,)
    if by_class:
        cell += target * num_bins
    size = num_bins * num_classes if by_class else num_bins
    confidences = confidence.new_zeros(size, dtype=torch.float64).index_add_(0, cell, confidence.double())
    counts = torch.bincount(cell, minlength=size)
    hits = torch.bincount(cell[predicted == target], minlength=size)
    return counts.view(shape), hits.view(shape), confidences.view(shape)


def balanced_bins(counts: Tensor, hits: Tensor, confidences: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The bins of all classes together, every class with samples counting the same.

    Args:
        counts: [C, B] from ``bin_confidences`` by class.
        hits: [C, B] likewise.
        confidences: [C, B] likewise.

    Returns:
        Three [B] float64: the same sums with samples weighted by 1 / n[y].

    >>> counts = torch.tensor([[0, 3], [1, 0]])
    >>> balanced_bins(counts, counts, counts.double())[0].tolist()
    [1.0, 1.0]
    """
    # A class without samples has nothing but zeros to weight.
    weights = 1 / counts.sum(dim=1).clamp_min(1).double()
    return weights @ counts.double(), weights @ hits.double(), weights @ confidences


def reliability(counts: Tensor, hits: Tensor, confidences: Tensor) -> Reliability:
    """The rows of the reliability diagram.

    Args:
        counts: [B] from ``bin_confidences`` or ``balanced_bins``.
        hits: [B] likewise.
        confidences: [B] likewise.

    >>> reliability(torch.tensor([0, 4]), torch.tensor([0, 3]), torch.tensor([0.0, 3.0])).accuracy.tolist()
    [nan, 0.75]
    """
    weight = counts.double()
    return Reliability(confidences.double() / weight, hits.double() / weight, weight / weight.sum())


def calibration_error(counts: Tensor, hits: Tensor, confidences: Tensor) -> Tensor:
    """The expected calibration error: how far confidence and accuracy lie apart, on average.

    Formula:
        sum_b share[b] * |accuracy[b] - confidence[b]|

    Args:
        counts: [B] from ``bin_confidences`` or ``balanced_bins``.
        hits: [B] likewise.
        confidences: [B] likewise.

    Returns:
        A scalar in [0, 1]; NaN without samples.

    >>> calibration_error(torch.tensor([2, 2]), torch.tensor([0, 2]), torch.tensor([0.5, 1.5])).item()
    0.25

    Reference:
        Guo et al. (2017), "On calibration of modern neural networks", eq. (3).
    """
    return (hits.double() - confidences.double()).abs().sum() / counts.double().sum()


class CalibrationError(Metric):
    """``calibration_error`` of the predicted class, over batches and processes.

    Args:
        num_bins: B. The state is three vectors of this length, whatever the number of classes.
        ignore_index: a sample with this target does not count.
        **kwargs: what every ``torchmetrics.Metric`` takes.

    Use when:
        Probabilities are used, and test data has the label distribution that matters.
    Avoid when:
        Rare classes matter: frequent ones hide how overconfident their predictions are. Use
        ``BalancedCalibrationError``.
    Equals:
        ``BalancedCalibrationError``, when all classes have equally many samples.

    >>> metric = CalibrationError(num_bins=2)
    >>> metric.update(torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log(), torch.tensor([0, 1]))
    >>> round(metric.compute().item(), 6), metric.reliability().share.tolist()
    (0.25, [0.0, 1.0])

    Reference:
        Guo et al. (2017), "On calibration of modern neural networks", eq. (3).
    """

    is_differentiable: bool = False
    higher_is_better: bool = False
    full_state_update: bool = False

    counts: Tensor
    hits: Tensor
    confidences: Tensor

    def __init__(self, num_bins: int = 15, *, ignore_index: int = -100, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive("num_bins", num_bins)
        _add_bin_states(self, (num_bins,))
        self.num_bins = num_bins
        self.ignore_index = ignore_index

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Count a batch: logits [N, C] and targets [N]."""
        counts, hits, confidences = bin_confidences(logits, target, self.num_bins, ignore_index=self.ignore_index)
        self.counts += counts
        self.hits += hits
        self.confidences += confidences

    def compute(self) -> Tensor:
        """The expected calibration error so far: a scalar, NaN without samples."""
        return calibration_error(self.counts, self.hits, self.confidences)

    def reliability(self) -> Reliability:
        """The reliability diagram's rows so far. Like ``compute``, to be called by all processes."""
        with synced(self):
            return reliability(self.counts, self.hits, self.confidences)


class BalancedCalibrationError(Metric):
    """``calibration_error`` of the predicted class with every true class counting the same.

    Formula:
        sum_b share[b] * |accuracy[b] - confidence[b]|, a sample of class y weighing 1 / n[y]

    Args:
        num_classes: C.
        num_bins: B. The state is three [C, B] matrices.
        ignore_index: a sample with this target does not count.
        **kwargs: what every ``torchmetrics.Metric`` takes.

    Use when:
        A model is adjusted or trained for balanced accuracy: its probabilities are meant for balanced labels.
    Avoid when:
        The test data is balanced already, or C is so large that 24 * C * B bytes matter.
    Equals:
        ``CalibrationError`` of the samples weighted by 1 / n[y].

    >>> metric = BalancedCalibrationError(num_classes=2, num_bins=2)
    >>> logits = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1]]).log()
    >>> metric.update(logits, torch.tensor([0, 0, 1]))
    >>> round(metric.compute().item(), 6), metric.missing_classes().tolist()
    (0.4, [])

    Deviates:
        The reference weights samples alike; the weights are those of the balanced error.

    Reference:
        Guo et al. (2017), "On calibration of modern neural networks", eq. (3).
    """

    is_differentiable: bool = False
    higher_is_better: bool = False
    full_state_update: bool = False

    counts: Tensor
    hits: Tensor
    confidences: Tensor

    def __init__(self, num_classes: int, num_bins: int = 15, *, ignore_index: int = -100, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive("num_classes", num_classes)
        check_positive("num_bins", num_bins)
        _add_bin_states(self, (num_classes, num_bins))
        self.num_classes = num_classes
        self.num_bins = num_bins
        self.ignore_index = ignore_index

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Count a batch: logits [N, C] and targets [N]."""
        if logits.shape[1:] != (self.num_classes,):
            raise ValueError(f"logits must be [N, {self.num_classes}]. Got shape {tuple(logits.shape)}.")
        counts, hits, confidences = bin_confidences(
            logits, target, self.num_bins, by_class=True, ignore_index=self.ignore_index
        )
        self.counts += counts
        self.hits += hits
        self.confidences += confidences

    def compute(self) -> Tensor:
        """The class-balanced expected calibration error so far: a scalar, NaN without samples."""
        return calibration_error(*balanced_bins(self.counts, self.hits, self.confidences))

    def reliability(self) -> Reliability:
        """The class-balanced reliability diagram's rows so far. Like ``compute``, to be called by all processes."""
        with synced(self):
            return reliability(*balanced_bins(self.counts, self.hits, self.confidences))

    def missing_classes(self) -> Tensor:
        """Indices of classes without samples so far. Like ``compute``, to be called by all processes."""
        with synced(self):
            return classes_without_samples(self.counts.sum(dim=1))


def _top_confidence(logits: Tensor) -> tuple[Tensor, Tensor]:
    """[N] the largest softmax probability and [N] its class."""
    wide = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    top, predicted = wide.max(dim=1)
    confidence = (top - wide.logsumexp(dim=1)).exp()
    if confidence.isnan().any():
        raise ValueError("the largest logit of a sample must be finite, or it has no confidence. Got infinity.")
    return confidence, predicted


def _add_bin_states(metric: Metric, shape: tuple[int, ...]) -> None:
    for name, dtype in (("counts", torch.int64), ("hits", torch.int64), ("confidences", torch.float64)):
        metric.add_state(name, torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")
