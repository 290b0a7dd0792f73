"""Metrics of rankings over batches and processes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longtail._core.predictions import check_positive
from longtail.metrics._base import CountMetric
from longtail.metrics._ranking import Measure, check_target, rank_labels
from longtail.metrics.label_hits import check_ks, count_label_hits
from longtail.metrics.multilabel import LabelCounts

__all__ = ["RetrievalMetric", "LabelHitsAtK"]

_NUMBERS = itertools.count()
"""A measure is a function, which can't be compared: every metric has a number of its own in its settings."""


class RetrievalMetric(CountMetric):
    """A measure over batches and processes.

    Formula:
        sum over samples of the measure's numerators / sum over samples of its denominators

    Args:
        measure: ``PRECISION``, ``RECALL``, ``NDCG``, ``propensity_scored_precision(inverses)`` or
            ``propensity_scored_ndcg(inverses)``; or a function of yours.
        k: the last place. The state is two vectors of this length.
        **kwargs: what every ``torchmetrics.Metric`` takes.

    Use when:
        Samples come in batches, or in several processes.
    Avoid when:
        All predictions are at hand: ``precision_at_k`` and its neighbors are one call.
    Special cases:
        The function of the measure, on all samples at once.

    >>> metric = RetrievalMetric(PRECISION, k=2)
    >>> metric.update(torch.tensor([[1, 2]]), torch.tensor([[1, 1, 0]]))
    >>> metric.update(torch.tensor([[0, 1]]), torch.tensor([[1, 1, 0]]))
    >>> metric.compute().tolist()
    [1.0, 0.75]
    """

    numerators: Tensor
    denominators: Tensor

    def __init__(self, measure: Measure, k: int = 5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive("k", k)
        self.measure, self.k = measure, k
        self.add_counts([k], "numerators", "denominators", dtype=torch.float64)
        self.add_settings(next(_NUMBERS))

    def update(self, predictions: Tensor, target: Any) -> None:
        """Count a batch: scores [N, C] or ranked labels [N, K], and the target [N, C], SciPy sparse or dense."""
        numerators, denominators = self.measure(rank_labels(predictions, target, self.k))
        self.numerators += numerators.sum(dim=0)
        self.denominators += denominators.sum(dim=0)

    def compute(self) -> Tensor:
        """[k] float64, the value at the places 1..k so far; NaN without samples."""
        return self.numerators / self.denominators


class LabelHitsAtK(CountMetric):
    """``count_label_hits`` over batches and processes, for groups and macro averages.

    Args:
        num_classes: C.
        ks: J numbers of places. The state is two [J, C] matrices and one vector of length C.
        **kwargs: what every ``torchmetrics.Metric`` takes.

    Use when:
        Groups of labels are compared: give what it computes to ``group_recall_from_counts``,
        ``macro_recall_from_counts`` and the like.
    Avoid when:
        16 * J * C bytes are too much.
    Special cases:
        ``count_label_hits``, on all samples at once.

    >>> metric = LabelHitsAtK(num_classes=3, ks=[1, 2])
    >>> metric.update(torch.tensor([[1, 2], [0, 1]]), torch.tensor([[1, 1, 0], [1, 1, 0]]))
    >>> macro_recall_from_counts(metric.compute()).tolist()
    [0.5, 0.75]
    """

    hits: Tensor
    predicted: Tensor
    positives: Tensor

    def __init__(self, num_classes: int, ks: Sequence[int] = (1, 10, 50), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive("num_classes", num_classes)
        self.num_classes, self.ks = num_classes, check_ks(ks)
        self.add_counts([len(ks), num_classes], "hits", "predicted")
        self.add_counts([num_classes], "positives")
        self.add_settings(*self.ks)

    def update(self, predictions: Tensor, target: Any) -> None:
        """Count a batch: scores [N, C] or ranked labels [N, K], and the target [N, C], SciPy sparse or dense."""
        target = check_target(target)
        if target.shape[1:] != (self.num_classes,):
            raise ValueError(f"target must be [N, {self.num_classes}]. Got shape {tuple(target.shape)}.")
        counts = count_label_hits(predictions, target, self.ks)
        self.hits += counts.hits
        self.predicted += counts.predicted
        self.positives += counts.positives

    def compute(self) -> LabelCounts:
        """The counts so far."""
        return LabelCounts(self.hits, self.predicted, self.positives)
