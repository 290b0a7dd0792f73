"""Metrics of rankings that count rare labels more, by their propensity."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from longtail.metrics._ranking import Measure, Ranking, best_gains, discounts, mean_measure, places
from longtail.prior import ClassPrior

__all__ = [
    "PROPENSITY_CONSTANTS",
    "propensity_scored_precision_at_k",
    "propensity_scored_ndcg_at_k",
    "inverse_propensities",
    "propensity_scored_precision",
    "propensity_scored_ndcg",
]


PROPENSITY_CONSTANTS = {
    "amazon": (0.6, 2.6),
    "wikipedia": (0.5, 0.4),
    "other": (0.55, 1.5),
}
"""A and B of ``inverse_propensities`` for kinds of data sets (Jain et al., 2016, section 4)."""


def propensity_scored_precision_at_k(predictions: Tensor, target: Any, k: int, inverses: Tensor) -> Tensor:
    """Precision that counts a rare label more, and is 1 for the best possible list.

    Formula:
        PSP@j = sum over samples of (sum_{i <= j} hit[i] / p[label[i]]) / the same sum of the best j true labels

    Args:
        predictions: [N, C] scores or [N, K] ranked labels.
        target: [N, C] zeros and ones, SciPy sparse or dense.
        k: the last place.
        inverses: [C] 1 / p, from ``inverse_propensities``.

    Returns:
        [k] float64, at the places 1..k; NaN where no label is true.

    Use when:
        Labels are missing in the target, rare ones more often, or rare labels are worth more.
    Avoid when:
        The propensities have nothing to do with how labels were assigned.
    Special cases:
        ``precision_at_k`` over that of the best list, where all propensities are equal.

    >>> target = torch.tensor([[1, 1, 0]])
    >>> propensity_scored_precision_at_k(torch.tensor([[0, 1]]), target, 2, torch.tensor([1.0, 4.0, 1.0])).tolist()
    [0.25, 1.0]

    Reference:
        Jain et al. (2016), "Extreme multi-label loss functions", section 4; normalized as in the repository's tables.
    """
    return mean_measure(propensity_scored_precision(inverses), predictions, target, k)


def propensity_scored_ndcg_at_k(predictions: Tensor, target: Any, k: int, inverses: Tensor) -> Tensor:
    """nDCG that counts a rare label more, and is 1 for the best possible list.

    Formula:
        PSnDCG@j = sum over samples of g[j] / sum over samples of the best possible g[j], with
        g[j] = (sum_{i <= j} hit[i] d[i] / p[label[i]]) / (sum_{i <= min(j, |true|)} d[i]), d[i] = 1 / log2(i + 1)

    Args:
        predictions: [N, C] scores or [N, K] ranked labels.
        target: [N, C] zeros and ones, SciPy sparse or dense.
        k: the last place.
        inverses: [C] 1 / p, from ``inverse_propensities``.

    Returns:
        [k] float64, at the places 1..k; NaN where no label is true.

    Use when:
        As ``propensity_scored_precision_at_k``, where the order within the list matters.
    Avoid when:
        The propensities have nothing to do with how labels were assigned.
    Special cases:
        ``propensity_scored_precision_at_k`` at place 1.

    >>> target = torch.tensor([[1, 1, 0]])
    >>> propensity_scored_ndcg_at_k(torch.tensor([[0, 1]]), target, 2, torch.tensor([1.0, 4.0, 1.0]))[0].item()
    0.25

    Deviates:
        The paper divides by the sum over j places; with samples of fewer than j labels it is over as many as there
        are, as in ``ndcg_at_k`` and in napkinXC.

    Reference:
        Jain et al. (2016), "Extreme multi-label loss functions", section 4.
    """
    return mean_measure(propensity_scored_ndcg(inverses), predictions, target, k)


def inverse_propensities(prior: ClassPrior, a: float = 0.55, b: float = 1.5) -> Tensor:
    """How much a found label counts: one over the chance that it was noticed when samples were labeled.

    Formula:
        1 / p[y] = 1 + (log N - 1) (b + 1)^a / (n[y] + b)^a

    Args:
        prior: n[y], how many of the N training samples have each label.
        a: how steeply propensity grows with frequency.
        b: shift of the frequencies. ``PROPENSITY_CONSTANTS`` has pairs (a, b).

    Returns:
        [C] float64, at least 1 for N of at least 3.

    >>> inverse_propensities(ClassPrior.from_counts([1000, 1])).round(decimals=2).tolist()
    [1.22, 6.91]

    Reference:
        Jain et al. (2016), "Extreme multi-label loss functions", section 4, eq. (5).
    """
    return prior.inverse_propensities(a, b)


def propensity_scored_precision(inverses: Tensor) -> Measure:
    """The measure of ``propensity_scored_precision_at_k``, for ``RetrievalMetric``.

    Args:
        inverses: [C] 1 / p, from ``inverse_propensities``.

    >>> metric = RetrievalMetric(propensity_scored_precision(torch.tensor([1.0, 4.0])), k=1)
    >>> metric(torch.tensor([[0.9, 0.1]]), torch.tensor([[1, 1]])).item()
    0.25
    """
    return partial(_scored_precision, _check_inverses(inverses))


def propensity_scored_ndcg(inverses: Tensor) -> Measure:
    """The measure of ``propensity_scored_ndcg_at_k`` with ``inverses`` [C], for ``RetrievalMetric``.

    >>> metric = RetrievalMetric(propensity_scored_ndcg(torch.tensor([1.0, 4.0])), k=1)
    >>> metric(torch.tensor([[0.9, 0.1]]), torch.tensor([[1, 1]])).item()
    0.25
    """
    return partial(_scored_ndcg, _check_inverses(inverses))


def _scored_precision(inverses: Tensor, ranking: Ranking) -> tuple[Tensor, Tensor]:
    found, best = _scores(inverses, ranking)
    return found.cumsum(dim=1) / places(ranking), best.cumsum(dim=1) / places(ranking)


def _scored_ndcg(inverses: Tensor, ranking: Ranking) -> tuple[Tensor, Tensor]:
    found, best = _scores(inverses, ranking)
    discount, normalizers = discounts(ranking), best_gains(ranking)
    return (found * discount).cumsum(dim=1) / normalizers, (best * discount).cumsum(dim=1) / normalizers


def _scores(inverses: Tensor, ranking: Ranking) -> tuple[Tensor, Tensor]:
    """[N, k] what the labels found count, and what the true labels count, largest first."""
    if len(inverses) != ranking.num_classes:
        raise ValueError(f"inverse propensities must be of {ranking.num_classes} labels. Got {len(inverses)}.")
    inverses = inverses.to(ranking.labels.device)
    found = ranking.is_hit * inverses[ranking.labels.clamp_min(0)]
    order = inverses[ranking.true_labels].argsort(descending=True)
    order = order[ranking.true_samples[order].argsort(stable=True)]
    first = ranking.num_true.cumsum(dim=0) - ranking.num_true
    place = torch.arange(len(order), device=order.device) - first[ranking.true_samples]
    is_kept = place < found.shape[1]
    best = torch.zeros_like(found)
    best[ranking.true_samples[is_kept], place[is_kept]] = inverses[ranking.true_labels[order]][is_kept]
    return found, best


def _check_inverses(inverses: Tensor) -> Tensor:
    wide = inverses.detach().double()
    if inverses.ndim != 1 or not bool((wide.isfinite() & (wide >= 0)).all()):
        raise ValueError("inverse propensities must be a vector of finite numbers of at least 0.")
    return wide
