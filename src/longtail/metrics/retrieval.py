"""Metrics of rankings: P@k, R@k and nDCG@k."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longtail.metrics._ranking import Measure, Ranking, best_gains, discounts, mean_measure, places

__all__ = ["precision_at_k", "recall_at_k", "ndcg_at_k", "PRECISION", "RECALL", "NDCG"]


def precision_at_k(predictions: Tensor, target: Any, k: int) -> Tensor:
    """How many of the best labels are true.

    Formula:
        P@j = mean over samples of |true and among the first j| / j

    Args:
        predictions: [N, C] scores or [N, K] ranked labels.
        target: [N, C] zeros and ones, SciPy sparse or dense.
        k: the last place.

    Returns:
        [k] float64, at the places 1..k; NaN without samples.

    Use when:
        A list of k labels is shown, and each wrong one costs the same.
    Avoid when:
        Rare labels matter: frequent ones alone can make it high. Use ``propensity_scored_precision_at_k``.
    Special cases:
        Accuracy at place 1, for one label per sample.

    >>> precision_at_k(torch.tensor([[1, 2], [0, 1]]), torch.tensor([[1, 1, 0], [1, 1, 0]]), k=2).tolist()
    [1.0, 0.75]

    Reference:
        Jain et al. (2016), "Extreme multi-label loss functions", section 3.
    """
    return mean_measure(PRECISION, predictions, target, k)


def recall_at_k(predictions: Tensor, target: Any, k: int) -> Tensor:
    """How many of the true labels are among the best.

    Formula:
        R@j = mean over samples of |true and among the first j| / |true|

    Args:
        predictions: [N, C] scores or [N, K] ranked labels.
        target: [N, C] zeros and ones, SciPy sparse or dense.
        k: the last place.

    Returns:
        [k] float64, at the places 1..k; NaN without samples.

    Use when:
        What is true should be found, as in retrieval and recommendation.
    Avoid when:
        Groups of labels are compared: samples with few labels dominate. Use ``group_recall``.
    Special cases:
        Top-j accuracy, for one label per sample.

    >>> recall_at_k(torch.tensor([[1, 2], [0, 1]]), torch.tensor([[1, 1, 0], [1, 1, 0]]), k=2).tolist()
    [0.5, 0.75]

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", section 5.2, where samples have one label.
    """
    return mean_measure(RECALL, predictions, target, k)


def ndcg_at_k(predictions: Tensor, target: Any, k: int) -> Tensor:
    """Normalized discounted cumulative gain: as precision, with early places counting more.

    Formula:
        nDCG@j = mean over samples of (sum_{i <= j} hit[i] d[i]) / (sum_{i <= min(j, |true|)} d[i]),
        with d[i] = 1 / log2(i + 1)

    Args:
        predictions: [N, C] scores or [N, K] ranked labels.
        target: [N, C] zeros and ones, SciPy sparse or dense.
        k: the last place.

    Returns:
        [k] float64, at the places 1..k; NaN without samples.

    Use when:
        The order within the list matters.
    Avoid when:
        Rare labels matter: use ``propensity_scored_ndcg_at_k``.
    Special cases:
        ``precision_at_k`` at place 1.

    >>> ndcg_at_k(torch.tensor([[1, 2], [0, 1]]), torch.tensor([[1, 1, 0], [1, 1, 0]]), k=2)[0].item()
    1.0

    Reference:
        Jain et al. (2016), "Extreme multi-label loss functions", section 3.
    """
    return mean_measure(NDCG, predictions, target, k)


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
