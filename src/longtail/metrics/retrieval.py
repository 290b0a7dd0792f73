"""Metrics of rankings: P@k, R@k and nDCG@k."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from longtail.metrics._base import check_positive
from longtail.metrics._ranking import Measure, Ranking, best_gains, discounts, mean_measure, places, rank_labels

__all__ = ["precision_at_k", "recall_at_k", "ndcg_at_k", "PRECISION", "RECALL", "NDCG", "RetrievalMetric"]


def precision_at_k(predictions: Tensor, truth: Any, k: int) -> Tensor:
    """How many of the best labels are true.

    Formula:
        P@j = mean over samples of |true and among the first j| / j

    Args:
        predictions: [N, C] scores or [N, K] ranked labels.
        truth: [N, C] zeros and ones, SciPy sparse or dense.
        k: the last place.

    Returns:
        [k] float64, at the places 1..k; NaN without samples.

    Use when:
        A list of k labels is shown, and each wrong one costs the same.
    Avoid when:
        Rare labels matter: frequent ones alone can make it high. Use ``propensity_scored_precision_at_k``.
    Equals:
        Accuracy at place 1, for one label a sample.

    >>> precision_at_k(torch.tensor([[1, 2], [0, 1]]), torch.tensor([[1, 1, 0], [1, 1, 0]]), k=2).tolist()
    [1.0, 0.75]

    Reference:
        Jain et al. (2016), "Extreme multi-label loss functions", section 3.
    """
    return mean_measure(PRECISION, predictions, truth, k)


def recall_at_k(predictions: Tensor, truth: Any, k: int) -> Tensor:
    """How many of the true labels are among the best.

    Formula:
        R@j = mean over samples of |true and among the first j| / |true|

    Args:
        predictions: [N, C] scores or [N, K] ranked labels.
        truth: [N, C] zeros and ones, SciPy sparse or dense.
        k: the last place.

    Returns:
        [k] float64, at the places 1..k; NaN without samples.

    Use when:
        What is true should be found, as in retrieval and recommendation.
    Avoid when:
        Groups of labels are compared: samples with few labels dominate. Use ``group_recall``.
    Equals:
        Top-j accuracy, for one label a sample.

    >>> recall_at_k(torch.tensor([[1, 2], [0, 1]]), torch.tensor([[1, 1, 0], [1, 1, 0]]), k=2).tolist()
    [0.5, 0.75]

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", section 5.2, where samples have one label.
    """
    return mean_measure(RECALL, predictions, truth, k)


def ndcg_at_k(predictions: Tensor, truth: Any, k: int) -> Tensor:
    """Normalized discounted cumulative gain: as precision, with early places counting more.

    Formula:
        nDCG@j = mean over samples of (sum_{i <= j} hit[i] d[i]) / (sum_{i <= min(j, |true|)} d[i]),
        with d[i] = 1 / log2(i + 1)

    Args:
        predictions: [N, C] scores or [N, K] ranked labels.
        truth: [N, C] zeros and ones, SciPy sparse or dense.
        k: the last place.

    Returns:
        [k] float64, at the places 1..k; NaN without samples.

    Use when:
        The order within the list matters.
    Avoid when:
        Rare labels matter: use ``propensity_scored_ndcg_at_k``.
    Equals:
        ``precision_at_k`` at place 1.

    >>> ndcg_at_k(torch.tensor([[1, 2], [0, 1]]), torch.tensor([[1, 1, 0], [1, 1, 0]]), k=2)[0].item()
    1.0

    Reference:
        Jain et al. (2016), "Extreme multi-label loss functions", section 3.
    """
    return mean_measure(NDCG, predictions, truth, k)


def _precision(ranking: Ranking) -> tuple[Tensor, Tensor]:
    hits = ranking.is_hit.double().cumsum(dim=1)
    return hits / places(ranking), torch.ones_like(hits)


def _recall(ranking: Ranking) -> tuple[Tensor, Tensor]:
    hits = ranking.is_hit.double().cumsum(dim=1)
    return hits / ranking.num_true.clamp_min(1)[:, None], torch.ones_like(hits)


def _ndcg(ranking: Ranking) -> tuple[Tensor, Tensor]:
    gains = (ranking.is_hit * discounts(ranking)).cumsum(dim=1)
    return gains / best_gains(ranking), torch.ones_like(gains)


PRECISION: Measure = _precision
"""The measure of ``precision_at_k``."""


RECALL: Measure = _recall
"""The measure of ``recall_at_k``."""


NDCG: Measure = _ndcg
"""The measure of ``ndcg_at_k``."""


class RetrievalMetric(Metric):
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
    Equals:
        The function of the measure, on all samples at once.

    >>> metric = RetrievalMetric(PRECISION, k=2)
    >>> metric.update(torch.tensor([[1, 2]]), torch.tensor([[1, 1, 0]]))
    >>> metric.update(torch.tensor([[0, 1]]), torch.tensor([[1, 1, 0]]))
    >>> metric.compute().tolist()
    [1.0, 0.75]
    """

    is_differentiable: bool = False
    higher_is_better: bool = True
    full_state_update: bool = False

    numerators: Tensor
    denominators: Tensor

    def __init__(self, measure: Measure, k: int = 5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive("k", k)
        self.measure, self.k = measure, k
        for name in ("numerators", "denominators"):
            self.add_state(name, torch.zeros(k, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, truth: Any) -> None:
        """Count a batch: scores [N, C] or ranked labels [N, K], and the truth [N, C], SciPy sparse or dense."""
        numerators, denominators = self.measure(rank_labels(predictions, truth, self.k))
        self.numerators += numerators.sum(dim=0)
        self.denominators += denominators.sum(dim=0)

    def compute(self) -> Tensor:
        """[k] float64, the value at the places 1..k so far; NaN without samples."""
        return self.numerators / self.denominators
