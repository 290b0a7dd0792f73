"""Recall and precision per label among the best k, at several k, and by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from longtail.metrics._ranking import NO_LABEL, rank_labels
from longtail.metrics.classes import balanced_accuracy_from_counts, per_class_accuracy_from_counts
from longtail.metrics.multilabel import LabelCounts

__all__ = [
    "count_label_hits",
    "group_recall",
    "group_recall_from_counts",
    "macro_recall",
    "macro_recall_from_counts",
    "macro_precision",
    "macro_precision_from_counts",
    "check_ks",
]


def count_label_hits(predictions: Tensor, target: Any, ks: Sequence[int]) -> LabelCounts:
    """Count for each label how often it is found among the best.

    Args:
        predictions: [N, C] scores or [N, K] ranked labels.
        target: [N, C] zeros and ones, SciPy sparse or dense.
        ks: J numbers of places, such as (1, 10, 50).

    Returns:
        The counts at each of them.

    >>> counts = count_label_hits(torch.tensor([[1, 2], [0, 1]]), torch.tensor([[1, 1, 0], [1, 1, 0]]), ks=[1, 2])
    >>> counts.hits.tolist(), counts.positives.tolist()
    ([[1, 1, 0], [1, 2, 0]], [2, 2, 0])
    """
    ranking = rank_labels(predictions, target, max(check_ks(ks)))
    hits = torch.where(ranking.is_hit, ranking.labels, NO_LABEL)
    return LabelCounts(
        torch.stack([_count(hits[:, :k], ranking.num_classes) for k in ks]),
        torch.stack([_count(ranking.labels[:, :k], ranking.num_classes) for k in ks]),
        _count(ranking.true_labels, ranking.num_classes),
    )


def group_recall(
    predictions: Tensor, target: Any, groups: Mapping[str, Tensor], ks: Sequence[int]
) -> dict[str, Tensor]:
    """The recall of groups of labels: each pair of a sample and one of its labels in the group counts the same.

    Formula:
        R@k of group G = sum_{y in G} hits[y] / sum_{y in G} positives[y]

    Args:
        predictions: [N, C] scores or [N, K] ranked labels.
        target: [N, C] zeros and ones, SciPy sparse or dense.
        groups: labels by name, as from ``ClassPrior.quantile_groups``: head, torso and tail.
        ks: J numbers of places, such as (1, 10, 50).

    Returns:
        [J] float64 by name; NaN for a group without samples.

    Use when:
        Head and tail are compared as in the paper, where each true label of a sample is an example of its own.
    Avoid when:
        Labels within a group differ much in frequency, and all matter: use ``macro_recall`` of their columns.
    Special cases:
        ``recall_at_k``, for one label per sample and one group of all labels.

    >>> target, groups = torch.tensor([[1, 1, 0], [1, 1, 0]]), {"head": torch.tensor([1])}
    >>> group_recall(torch.tensor([[1, 2], [0, 1]]), target, groups, ks=[1, 2])["head"].tolist()
    [0.5, 1.0]

    Reference:
        Rawat et al., "Disentangling sampling and labeling bias", section 5.2 and Figure 2.
    """
    return group_recall_from_counts(count_label_hits(predictions, target, ks), groups)


def group_recall_from_counts(counts: LabelCounts, groups: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``group_recall`` of what ``count_label_hits`` counted.

    >>> counts = count_label_hits(torch.tensor([[1, 2], [0, 1]]), torch.tensor([[1, 1, 0], [1, 1, 0]]), ks=[1, 2])
    >>> group_recall_from_counts(counts, {"tail": torch.tensor([0, 2])})["tail"].tolist()
    [0.5, 0.5]
    """
    return {
        name: counts.hits[:, labels].sum(dim=1).double() / counts.positives[labels].sum()
        for name, labels in groups.items()
    }


def macro_recall(predictions: Tensor, target: Any, ks: Sequence[int]) -> Tensor:
    """[J] float64, the mean over labels of their recall; labels that are never true have none, and are left out.

    Args:
        predictions: [N, C] scores or [N, K] ranked labels.
        target: [N, C] zeros and ones, SciPy sparse or dense.
        ks: J numbers of places, such as (1, 10, 50).

    >>> macro_recall(torch.tensor([[1, 2], [0, 1]]), torch.tensor([[1, 1, 0], [1, 1, 0]]), ks=[1, 2]).tolist()
    [0.5, 0.75]
    """
    return macro_recall_from_counts(count_label_hits(predictions, target, ks))


def macro_recall_from_counts(counts: LabelCounts) -> Tensor:
    """``macro_recall`` of what ``count_label_hits`` counted.

    >>> counts = LabelCounts(torch.tensor([[1, 1, 0]]), torch.tensor([[1, 1, 0]]), torch.tensor([2, 2, 0]))
    >>> macro_recall_from_counts(counts).tolist()
    [0.5]
    """
    return balanced_accuracy_from_counts(counts.hits, counts.positives)


def macro_precision(predictions: Tensor, target: Any, ks: Sequence[int]) -> Tensor:
    """[J] float64, the mean over labels of their precision; labels neither true nor predicted are left out.

    A label that is true somewhere and never predicted has precision 0: leaving it out would reward silence.

    Args:
        predictions: [N, C] scores or [N, K] ranked labels.
        target: [N, C] zeros and ones, SciPy sparse or dense.
        ks: J numbers of places, such as (1, 10, 50).

    >>> macro_precision(torch.tensor([[1, 2], [0, 1]]), torch.tensor([[1, 1, 0], [1, 1, 0]]), ks=[1])[0].item()
    1.0
    """
    return macro_precision_from_counts(count_label_hits(predictions, target, ks))


def macro_precision_from_counts(counts: LabelCounts) -> Tensor:
    """``macro_precision`` of what ``count_label_hits`` counted.

    >>> counts = LabelCounts(torch.tensor([[1, 0, 0]]), torch.tensor([[2, 0, 0]]), torch.tensor([2, 2, 0]))
    >>> macro_precision_from_counts(counts).tolist()
    [0.25]
    """
    precision = per_class_accuracy_from_counts(counts.hits, counts.predicted)
    is_missed = (counts.predicted == 0) & (counts.positives > 0)
    return precision.masked_fill(is_missed, 0.0).nanmean(dim=1)


def check_ks(ks: Sequence[int]) -> tuple[int, ...]:
    """The numbers of places as a tuple; there must be one, and each at least 1."""
    if not ks or min(ks) < 1:
        raise ValueError(f"ks must name at least one number of places, each at least 1. Got {ks}.")
    return tuple(ks)


def _count(labels: Tensor, num_classes: int) -> Tensor:
    return torch.bincount(labels[labels != NO_LABEL], minlength=num_classes)
