"""Calibration errors over batches and processes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from longtail._core.predictions import find_missing
from longtail.metrics._base import ConfidenceMetric
from longtail.metrics.calibration import balance_bins, calibration_error_from_counts

__all__ = ["CalibrationError", "BalancedCalibrationError"]


class CalibrationError(ConfidenceMetric):
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
    Special cases:
        ``BalancedCalibrationError``, when all classes have equally many samples.

    >>> metric = CalibrationError(num_bins=2)
    >>> metric.update(torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log(), torch.tensor([0, 1]))
    >>> round(metric.compute().item(), 6), metric.reliability().share.tolist()
    (0.25, [0.0, 1.0])

    Reference:
        Guo et al. (2017), "On calibration of modern neural networks", eq. (3).
    """

    def __init__(self, num_bins: int = 15, *, ignore_index: int = -100, **kwargs: Any) -> None:
        super().__init__(None, num_bins, ignore_index, **kwargs)

    def compute(self) -> Tensor:
        """The expected calibration error so far: a scalar, NaN without samples."""
        return calibration_error_from_counts(*self.bins())


class BalancedCalibrationError(ConfidenceMetric):
    """``balanced_calibration_error`` over batches and processes: every true class counts the same.

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
    Special cases:
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

    def __init__(self, num_classes: int, num_bins: int = 15, *, ignore_index: int = -100, **kwargs: Any) -> None:
        super().__init__(num_classes, num_bins, ignore_index, **kwargs)

    def bins(self) -> tuple[Tensor, Tensor, Tensor]:
        """Hits, counts and confidences so far with every class counting the same, three [B]."""
        return balance_bins(self.hits, self.counts, self.confidences)

    def compute(self) -> Tensor:
        """The class-balanced expected calibration error so far: a scalar, NaN without samples."""
        return calibration_error_from_counts(*self.bins())

    def missing_classes(self) -> Tensor:
        """Indices of classes without samples so far. Like ``compute``, to be called by all processes."""
        with self.synced():
            return find_missing(self.counts.sum(dim=1))
