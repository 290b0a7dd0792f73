"""Recall and precision per label at several k, and by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from longtail.metrics._base import check_positive
from longtail.metrics._ranking import NONE, check_truth, rank_labels
from longtail.metrics.classes import balanced_accuracy, per_class_accuracy

__all__ = ["LabelHits", "count_label_hits", "group_recall", "macro_recall", "macro_precision", "LabelHitsAtK"]


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
        check_positive("num_classes", num_classes)
        self.num_classes, self.at = num_classes, _checked_places(at)
        for name, shape in (("hits", (len(at), num_classes)), ("predicted", (len(at), num_classes))):
            self.add_state(name, torch.zeros(shape, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("counts", torch.zeros(num_classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, truth: Any) -> None:
        """Count a batch: scores [N, C] or ranked labels [N, K], and the truth [N, C], SciPy sparse or dense."""
        truth = check_truth(truth)
        if truth.shape[1:] != (self.num_classes,):
            raise ValueError(f"truth must be [N, {self.num_classes}]. Got shape {tuple(truth.shape)}.")
        counted = count_label_hits(predictions, truth, self.at)
        self.hits += counted.hits
        self.predicted += counted.predicted
        self.counts += counted.counts

    def compute(self) -> LabelHits:
        """The counts so far."""
        return LabelHits(self.hits, self.predicted, self.counts)


def _checked_places(at: Sequence[int]) -> tuple[int, ...]:
    if not at or min(at) < 1:
        raise ValueError(f"at must name at least one number of places, each at least 1. Got {at}.")
    return tuple(at)


def _count(labels: Tensor, num_classes: int) -> Tensor:
    return torch.bincount(labels[labels != NONE], minlength=num_classes)
