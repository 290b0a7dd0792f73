"""How good the best k labels of each sample are, where labels are many and a sample may have several.

A measure gives every sample a numerator and a denominator at each of the places 1..k; a value is the sum of the
numerators over that of the denominators. That is a mean where denominators are 1, and lets ``RetrievalMetric`` add up
batches and processes for every measure alike. What looks at single labels (slices, macro averages) starts from
``LabelHits``, which counts them.

Predictions are floating-point scores [N, C], or ranked labels [N, K], best first, with -1 where there is none. The
truth is a 0/1 matrix [N, C], SciPy sparse or dense. A sample without true labels counts as a sample where nothing
was found, as it does in napkinXC, with whose values all of these agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torchmetrics import Metric

from longtail.metrics import _check_positive, _is_integer, balanced_accuracy, per_class_accuracy
from longtail.prior import ClassPrior

__all__ = [
    "NDCG",
    "PRECISION",
    "PROPENSITY_CONSTANTS",
    "RECALL",
    "LabelHits",
    "LabelHitsAtK",
    "Measure",
    "Ranking",
    "RetrievalMetric",
    "count_label_hits",
    "group_recall",
    "inverse_propensities",
    "macro_precision",
    "macro_recall",
    "ndcg_at_k",
    "precision_at_k",
    "propensity_scored_ndcg",
    "propensity_scored_ndcg_at_k",
    "propensity_scored_precision",
    "propensity_scored_precision_at_k",
    "rank_labels",
    "recall_at_k",
]

NONE = -1
"""The label that stands for none."""

PROPENSITY_CONSTANTS = {
    "amazon": (0.6, 2.6),
    "wikipedia": (0.5, 0.4),
    "other": (0.55, 1.5),
}
"""A and B of ``inverse_propensities`` for kinds of data sets (Jain et al., 2016, section 4)."""


class Ranking(NamedTuple):
    """The best k labels of each sample beside the true ones."""

    labels: Tensor
    """[N, k] labels, best first, -1 for none."""
    is_hit: Tensor
    """[N, k] whether each of them is true."""
    num_true: Tensor
    """[N] how many labels are true."""
    true_samples: Tensor
    """[P] the samples that the true labels belong to, in order."""
    true_labels: Tensor
    """[P] the true labels."""
    num_classes: int
    """C."""


Measure = Callable[[Ranking], tuple[Tensor, Tensor]]
"""Numerators and denominators [N, k] at the places 1..k, float64."""


def rank_labels(predictions: Tensor, truth: Any, k: int) -> Ranking:
    """Take the best k labels of each sample, and look up which of them are true.

    Args:
        predictions: [N, C] floating-point scores, of which equal ones rank by label, smaller first; or [N, K] ranked
            labels, whole numbers, each at most once a row, filled up with -1.
        truth: [N, C] zeros and ones, SciPy sparse or dense.
        k: how many, at most C and K.

    Returns:
        The ranking, on the device of ``predictions``.

    >>> ranking = rank_labels(torch.tensor([[0.1, 0.7, 0.2]]), torch.tensor([[1, 0, 1]]), k=2)
    >>> ranking.labels.tolist(), ranking.is_hit.tolist(), ranking.num_true.tolist()
    ([[1, 2]], [[False, True]], [2])
    """
    matrix = _checked_truth(truth)
    num_samples, num_classes = matrix.shape
    labels = _best_labels(predictions, num_samples, num_classes, k)
    counts = torch.from_numpy(np.diff(matrix.indptr).astype(np.int64)).to(labels.device)
    true_labels = torch.from_numpy(matrix.indices.astype(np.int64)).to(labels.device)
    rows = torch.arange(num_samples, device=labels.device)
    true_samples = rows.repeat_interleave(counts)
    if len(true_labels):
        known = true_samples * num_classes + true_labels  # ascending, for rows and the labels in them are
        wanted = rows[:, None] * num_classes + labels
        place = torch.searchsorted(known, wanted).clamp_max(len(known) - 1)
        is_hit = (known[place] == wanted) & (labels != NONE)
    else:
        is_hit = torch.zeros_like(labels, dtype=torch.bool)
    return Ranking(labels, is_hit, counts, true_samples, true_labels, num_classes)


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
    return _value(PRECISION, predictions, truth, k)


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
    return _value(RECALL, predictions, truth, k)


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
    return _value(NDCG, predictions, truth, k)


def propensity_scored_precision_at_k(predictions: Tensor, truth: Any, k: int, inverses: Tensor) -> Tensor:
    """Precision that counts a rare label more, and is 1 for the best possible list.

    Formula:
        PSP@j = sum over samples of (sum_{i <= j} hit[i] / p[label[i]]) / the same sum of the best j true labels

    Args:
        predictions: [N, C] scores or [N, K] ranked labels.
        truth: [N, C] zeros and ones, SciPy sparse or dense.
        k: the last place.
        inverses: [C] 1 / p, from ``inverse_propensities``.

    Returns:
        [k] float64, at the places 1..k; NaN where no label is true.

    Use when:
        Labels are missing in the truth, rare ones more often, or rare labels are worth more.
    Avoid when:
        The propensities have nothing to do with how labels were assigned.
    Equals:
        ``precision_at_k`` over that of the best list, where all propensities are equal.

    >>> truth = torch.tensor([[1, 1, 0]])
    >>> propensity_scored_precision_at_k(torch.tensor([[0, 1]]), truth, 2, torch.tensor([1.0, 4.0, 1.0])).tolist()
    [0.25, 1.0]

    Reference:
        Jain et al. (2016), "Extreme multi-label loss functions", section 4; normalized as in the repository's tables.
    """
    return _value(propensity_scored_precision(inverses), predictions, truth, k)


def propensity_scored_ndcg_at_k(predictions: Tensor, truth: Any, k: int, inverses: Tensor) -> Tensor:
    """nDCG that counts a rare label more, and is 1 for the best possible list.

    Formula:
        PSnDCG@j = sum over samples of g[j] / sum over samples of the best possible g[j], with
        g[j] = (sum_{i <= j} hit[i] d[i] / p[label[i]]) / (sum_{i <= min(j, |true|)} d[i]), d[i] = 1 / log2(i + 1)

    Args:
        predictions: [N, C] scores or [N, K] ranked labels.
        truth: [N, C] zeros and ones, SciPy sparse or dense.
        k: the last place.
        inverses: [C] 1 / p, from ``inverse_propensities``.

    Returns:
        [k] float64, at the places 1..k; NaN where no label is true.

    Use when:
        As ``propensity_scored_precision_at_k``, where the order within the list matters.
    Avoid when:
        The propensities have nothing to do with how labels were assigned.
    Equals:
        ``propensity_scored_precision_at_k`` at place 1.

    >>> truth = torch.tensor([[1, 1, 0]])
    >>> propensity_scored_ndcg_at_k(torch.tensor([[0, 1]]), truth, 2, torch.tensor([1.0, 4.0, 1.0]))[0].item()
    0.25

    Deviates:
        The paper divides by the sum over j places; with samples of fewer than j labels it is over as many as there
        are, as in ``ndcg_at_k`` and in napkinXC.

    Reference:
        Jain et al. (2016), "Extreme multi-label loss functions", section 4.
    """
    return _value(propensity_scored_ndcg(inverses), predictions, truth, k)


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
    for name, value in (("a", a), ("b", b)):
        if not 0 <= value < float("inf"):
            raise ValueError(f"inverse_propensities: {name} must be a finite number of at least 0. Got {value}.")
    counts = prior.counts.double()
    if b == 0 and bool((counts == 0).any()):
        raise ValueError("inverse_propensities: b must be above 0 where a label has no samples. Got 0.")
    return 1 + (math.log(prior.num_samples) - 1) * ((b + 1) / (counts + b)) ** a


# Measures


def _precision(ranking: Ranking) -> tuple[Tensor, Tensor]:
    hits = ranking.is_hit.double().cumsum(dim=1)
    return hits / _places(ranking), torch.ones_like(hits)


def _recall(ranking: Ranking) -> tuple[Tensor, Tensor]:
    hits = ranking.is_hit.double().cumsum(dim=1)
    return hits / ranking.num_true.clamp_min(1)[:, None], torch.ones_like(hits)


def _ndcg(ranking: Ranking) -> tuple[Tensor, Tensor]:
    gains = (ranking.is_hit * _discounts(ranking)).cumsum(dim=1)
    return gains / _best_gains(ranking), torch.ones_like(gains)


PRECISION: Measure = _precision
"""The measure of ``precision_at_k``."""
RECALL: Measure = _recall
"""The measure of ``recall_at_k``."""
NDCG: Measure = _ndcg
"""The measure of ``ndcg_at_k``."""


def propensity_scored_precision(inverses: Tensor) -> Measure:
    """The measure of ``propensity_scored_precision_at_k``, for ``RetrievalMetric``.

    Args:
        inverses: [C] 1 / p, from ``inverse_propensities``.

    >>> metric = RetrievalMetric(propensity_scored_precision(torch.tensor([1.0, 4.0])), k=1)
    >>> metric(torch.tensor([[0.9, 0.1]]), torch.tensor([[1, 1]])).item()
    0.25
    """
    return partial(_scored_precision, _checked_inverses(inverses))


def propensity_scored_ndcg(inverses: Tensor) -> Measure:
    """The measure of ``propensity_scored_ndcg_at_k``, for ``RetrievalMetric``.

    Args:
        inverses: [C] 1 / p, from ``inverse_propensities``.

    >>> metric = RetrievalMetric(propensity_scored_ndcg(torch.tensor([1.0, 4.0])), k=1)
    >>> metric(torch.tensor([[0.9, 0.1]]), torch.tensor([[1, 1]])).item()
    0.25
    """
    return partial(_scored_ndcg, _checked_inverses(inverses))


def _scored_precision(inverses: Tensor, ranking: Ranking) -> tuple[Tensor, Tensor]:
    found, best = _scores(inverses, ranking)
    return found.cumsum(dim=1) / _places(ranking), best.cumsum(dim=1) / _places(ranking)


def _scored_ndcg(inverses: Tensor, ranking: Ranking) -> tuple[Tensor, Tensor]:
    found, best = _scores(inverses, ranking)
    discounts, normalizers = _discounts(ranking), _best_gains(ranking)
    return (found * discounts).cumsum(dim=1) / normalizers, (best * discounts).cumsum(dim=1) / normalizers


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


def _places(ranking: Ranking) -> Tensor:
    return torch.arange(1, ranking.labels.shape[1] + 1, device=ranking.labels.device)


def _discounts(ranking: Ranking) -> Tensor:
    return 1 / torch.log2(_places(ranking).double() + 1)


def _best_gains(ranking: Ranking) -> Tensor:
    """[N, k] the discounted gain of a list whose first labels are the true ones; 1 where there are none."""
    is_true = _places(ranking) <= ranking.num_true.clamp_min(1)[:, None]
    return (is_true * _discounts(ranking)).cumsum(dim=1)


def _value(measure: Measure, predictions: Tensor, truth: Any, k: int) -> Tensor:
    numerators, denominators = measure(rank_labels(predictions, truth, k))
    return numerators.sum(dim=0) / denominators.sum(dim=0)


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
        _check_positive("k", k)
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


# Single labels


class LabelHits(NamedTuple):
    """How often each label was among the best, at J numbers of places."""

    hits: Tensor
    """[J, C] int64, for how many samples the label is true and among the best."""
    predicted: Tensor
    """[J, C] int64, for how many samples it is among the best."""
    counts: Tensor
    """[C] int64, for how many samples it is true."""


def count_label_hits(predictions: Tensor, truth: Any, at: Sequence[int]) -> LabelHits:
    """Count for each label how often it is found among the best.

    Args:
        predictions: [N, C] scores or [N, K] ranked labels.
        truth: [N, C] zeros and ones, SciPy sparse or dense.
        at: J numbers of places, such as (1, 10, 50).

    Returns:
        The counts.

    >>> counted = count_label_hits(torch.tensor([[1, 2], [0, 1]]), torch.tensor([[1, 1, 0], [1, 1, 0]]), at=[1, 2])
    >>> counted.hits.tolist(), counted.counts.tolist()
    ([[1, 1, 0], [1, 2, 0]], [2, 2, 0])
    """
    ranking = rank_labels(predictions, truth, max(_checked_places(at)))
    hits = torch.where(ranking.is_hit, ranking.labels, NONE)
    return LabelHits(
        torch.stack([_count(hits[:, :k], ranking.num_classes) for k in at]),
        torch.stack([_count(ranking.labels[:, :k], ranking.num_classes) for k in at]),
        _count(ranking.true_labels, ranking.num_classes),
    )


def group_recall(counted: LabelHits, groups: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The recall of groups of labels: each pair of a sample and one of its labels in the group counts the same.

    Formula:
        R@k of group G = sum_{y in G} hits[y] / sum_{y in G} counts[y]

    Args:
        counted: from ``count_label_hits``.
        groups: labels by name, as from ``ClassPrior.quantile_groups``: head, torso and tail.

    Returns:
        [J] float64 by name; NaN for a group without samples.

    Use when:
        Head and tail are compared as in the paper, where each true label of a sample is an example of its own.
    Avoid when:
        Labels within a group differ much in frequency, and all matter: use ``macro_recall`` of their columns.
    Equals:
        ``recall_at_k``, for one label a sample and one group of all labels.

    >>> counted = count_label_hits(torch.tensor([[1, 2], [0, 1]]), torch.tensor([[1, 1, 0], [1, 1, 0]]), at=[1, 2])
    >>> group_recall(counted, {"head": torch.tensor([1]), "tail": torch.tensor([0, 2])})["head"].tolist()
    [0.5, 1.0]

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", section 5.2 and Figure 2.
    """
    return {
        name: counted.hits[:, labels].sum(dim=1).double() / counted.counts[labels].sum()
        for name, labels in groups.items()
    }


def macro_recall(counted: LabelHits) -> Tensor:
    """[J] float64, the mean over labels of their recall; labels that are never true have none, and are left out.

    Args:
        counted: from ``count_label_hits``.

    >>> counted = count_label_hits(torch.tensor([[1, 2], [0, 1]]), torch.tensor([[1, 1, 0], [1, 1, 0]]), at=[1, 2])
    >>> macro_recall(counted).tolist()
    [0.5, 0.75]
    """
    return torch.stack([balanced_accuracy(hits, counted.counts) for hits in counted.hits])


def macro_precision(counted: LabelHits) -> Tensor:
    """[J] float64, the mean over labels of their precision; labels neither true nor predicted are left out.

    A label that is true somewhere and never predicted has precision 0: leaving it out would reward silence.

    Args:
        counted: from ``count_label_hits``.

    >>> counted = count_label_hits(torch.tensor([[1, 2], [0, 1]]), torch.tensor([[1, 1, 0], [1, 1, 0]]), at=[1, 2])
    >>> macro_precision(counted)[0].item()
    1.0
    """
    precision = per_class_accuracy(counted.hits, counted.predicted)
    is_missed = (counted.predicted == 0) & (counted.counts > 0)
    return precision.masked_fill(is_missed, 0.0).nanmean(dim=1)


class LabelHitsAtK(Metric):
    """``count_label_hits`` over batches and processes, for slices and macro averages.

    Args:
        num_classes: C.
        at: J numbers of places. The state is two [J, C] matrices and one vector of length C.
        **kwargs: what every ``torchmetrics.Metric`` takes.

    Use when:
        Groups of labels are compared: give what it computes to ``group_recall``, ``macro_recall`` and the like.
    Avoid when:
        16 * J * C bytes are too much.
    Equals:
        ``count_label_hits``, on all samples at once.

    >>> metric = LabelHitsAtK(num_classes=3, at=[1, 2])
    >>> metric.update(torch.tensor([[1, 2], [0, 1]]), torch.tensor([[1, 1, 0], [1, 1, 0]]))
    >>> macro_recall(metric.compute()).tolist()
    [0.5, 0.75]
    """

    is_differentiable: bool = False
    higher_is_better: bool = True
    full_state_update: bool = False

    hits: Tensor
    predicted: Tensor
    counts: Tensor

    def __init__(self, num_classes: int, at: Sequence[int] = (1, 10, 50), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        _check_positive("num_classes", num_classes)
        self.num_classes, self.at = num_classes, _checked_places(at)
        for name, shape in (("hits", (len(at), num_classes)), ("predicted", (len(at), num_classes))):
            self.add_state(name, torch.zeros(shape, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("counts", torch.zeros(num_classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, truth: Any) -> None:
        """Count a batch: scores [N, C] or ranked labels [N, K], and the truth [N, C], SciPy sparse or dense."""
        truth = _checked_truth(truth)
        if truth.shape[1:] != (self.num_classes,):
            raise ValueError(f"truth must be [N, {self.num_classes}]. Got shape {tuple(truth.shape)}.")
        counted = count_label_hits(predictions, truth, self.at)
        self.hits += counted.hits
        self.predicted += counted.predicted
        self.counts += counted.counts

    def compute(self) -> LabelHits:
        """The counts so far."""
        return LabelHits(self.hits, self.predicted, self.counts)


# What comes in


def _checked_truth(truth: Any) -> sparse.csr_array:
    """The truth as CSR, rows sorted, with nothing in it but ones."""
    if isinstance(truth, Tensor):
        truth = truth.detach().cpu().numpy()
    if len(getattr(truth, "shape", ())) != 2:
        raise ValueError(
            f"truth must be a matrix [N, C] of zeros and ones. Got {getattr(truth, 'shape', type(truth).__name__)}."
        )
    matrix = sparse.csr_array(truth, copy=True)
    matrix.sum_duplicates()  # sorts each row as well
    matrix.eliminate_zeros()
    if matrix.dtype.kind not in "iufb" or not bool((matrix.data == 1).all()):
        raise ValueError("truth must have no entries but 0 and 1. Got others.")
    return matrix


def _best_labels(predictions: Tensor, num_samples: int, num_classes: int, k: int) -> Tensor:
    """[N, k] int64, the first k of ranked labels, or the labels of the k largest scores."""
    predictions = torch.as_tensor(predictions)  # scikit-learn's predictions are arrays
    if predictions.ndim != 2 or len(predictions) != num_samples:
        raise ValueError(
            f"predictions must be scores [{num_samples}, {num_classes}] or ranked labels [{num_samples}, K]. "
            f"Got {predictions.dtype} {tuple(predictions.shape)}."
        )
    if not 1 <= k <= min(predictions.shape[1], num_classes):
        raise ValueError(
            f"k must be in 1..{min(predictions.shape[1], num_classes)}, for predictions "
            f"{tuple(predictions.shape)} and {num_classes} labels. Got {k}."
        )
    if _is_integer(predictions):
        return _checked_labels(predictions.detach()[:, :k].long(), num_classes)
    if not predictions.is_floating_point() or predictions.shape[1] != num_classes:
        raise ValueError(
            f"scores must be floating-point [N, {num_classes}]. Got {predictions.dtype} {tuple(predictions.shape)}."
        )
    if num_samples and bool(predictions.amax(dim=1).isnan().any()):
        raise ValueError("scores must not be NaN. Got NaN; look for a diverged model.")
    return _top_labels(predictions.detach(), k)


def _top_labels(scores: Tensor, k: int) -> Tensor:
    """The labels of the k largest scores; equal ones by label. ``topk`` alone leaves their order open."""
    labels = scores.topk(k, dim=1).indices.sort(dim=1).values
    values, order = scores.gather(1, labels).sort(dim=1, descending=True, stable=True)
    labels = labels.gather(1, order)
    is_tied = (scores >= values[:, -1:]).sum(dim=1) > k  # which of the equal ones ``topk`` took is open as well
    if bool(is_tied.any()):
        labels[is_tied] = scores[is_tied].sort(dim=1, descending=True, stable=True).indices[:, :k]
    return labels


def _checked_labels(labels: Tensor, num_classes: int) -> Tensor:
    if labels.numel():
        low, high = (int(value) for value in torch.aminmax(labels))
        if low < NONE or high >= num_classes:
            wrong = low if low < NONE else high
            raise ValueError(f"ranked labels must be in 0..{num_classes - 1}, or {NONE} for none. Got {wrong}.")
    ordered = labels.sort(dim=1).values
    is_twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != NONE)
    if bool(is_twice.any()):
        row = int(torch.nonzero(is_twice.any(dim=1))[0])
        raise ValueError(f"ranked labels must name a label at most once a row. Got one twice in row {row}.")
    return labels


def _checked_inverses(inverses: Tensor) -> Tensor:
    wide = inverses.detach().double()
    if inverses.ndim != 1 or not bool((wide.isfinite() & (wide >= 0)).all()):
        raise ValueError("inverse propensities must be a vector of finite numbers of at least 0.")
    return wide


def _checked_places(at: Sequence[int]) -> tuple[int, ...]:
    if not at or min(at) < 1:
        raise ValueError(f"at must name at least one number of places, each at least 1. Got {at}.")
    return tuple(at)


def _count(labels: Tensor, num_classes: int) -> Tensor:
    return torch.bincount(labels[labels != NONE], minlength=num_classes)
