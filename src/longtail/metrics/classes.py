"""Accuracy per class, balanced, and by head, torso and tail."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from longtail._core.predictions import check_groups, check_k, find_hits, take_counted

__all__ = [
    "count_hits",
    "per_class_accuracy",
    "per_class_accuracy_from_counts",
    "balanced_accuracy",
    "balanced_accuracy_from_counts",
    "balanced_error",
    "balanced_error_from_counts",
    "group_accuracy",
    "group_accuracy_from_counts",
]


def count_hits(
    predictions: Tensor, target: Tensor, num_classes: int | None = None, k: int = 1, *, ignore_index: int = -100
) -> tuple[Tensor, Tensor]:
    """How many samples of each class are predicted right, and how many there are.

    Args:
        predictions: [N, C] logits (any scores; the largest wins), or [N] predicted class indices.
        target: [N] class indices.
        num_classes: C; None for that of the logits.
        k: how many of the largest logits may be right. Equal logits rank by class index, smaller first.
        ignore_index: a sample with this target does not count.

    Returns:
        Two [C] int64: hits and counts.

    >>> hits, counts = count_hits(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), num_classes=3)
    >>> hits.tolist(), counts.tolist()
    ([1, 1, 0], [1, 2, 0])
    """
    predictions, target, num_classes = take_counted(predictions, target, num_classes, ignore_index)
    check_k(k, num_classes)
    is_hit = find_hits(predictions, target, k)
    return torch.bincount(target[is_hit], minlength=num_classes), torch.bincount(target, minlength=num_classes)


def per_class_accuracy(
    predictions: Tensor, target: Tensor, num_classes: int | None = None, k: int = 1, *, ignore_index: int = -100
) -> Tensor:
    """[C] float64, the share of each class's samples that are right (its recall); NaN for a class without samples.

    Args:
        predictions: [N, C] logits, or [N] predicted class indices.
        target: [N] class indices.

    ``num_classes``, ``k`` and ``ignore_index`` are those of ``count_hits``.

    >>> per_class_accuracy(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), num_classes=3).tolist()
    [1.0, 0.5, nan]
    """
    return per_class_accuracy_from_counts(*count_hits(predictions, target, num_classes, k, ignore_index=ignore_index))


def per_class_accuracy_from_counts(hits: Tensor, counts: Tensor) -> Tensor:
    """``per_class_accuracy`` of what ``count_hits`` counted, two [C].

    >>> per_class_accuracy_from_counts(torch.tensor([1, 1, 0]), torch.tensor([1, 2, 0])).tolist()
    [1.0, 0.5, nan]
    """
    return hits.double() / counts.double()


def balanced_accuracy(
    predictions: Tensor, target: Tensor, num_classes: int | None = None, k: int = 1, *, ignore_index: int = -100
) -> Tensor:
    """The mean of ``per_class_accuracy`` over the classes that have samples: a scalar, NaN if none has.

    Args:
        predictions: [N, C] logits, or [N] predicted class indices.
        target: [N] class indices.

    ``num_classes``, ``k`` and ``ignore_index`` are those of ``count_hits``.

    >>> balanced_accuracy(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), num_classes=3).item()
    0.75

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (2), as 1 - balanced error.
    """
    return balanced_accuracy_from_counts(*count_hits(predictions, target, num_classes, k, ignore_index=ignore_index))


def balanced_accuracy_from_counts(hits: Tensor, counts: Tensor) -> Tensor:
    """``balanced_accuracy`` of what ``count_hits`` counted, two [C].

    >>> balanced_accuracy_from_counts(torch.tensor([1, 1, 0]), torch.tensor([1, 2, 0])).item()
    0.75
    """
    return per_class_accuracy_from_counts(hits, counts).nanmean(dim=-1)


def balanced_error(
    predictions: Tensor, target: Tensor, num_classes: int | None = None, k: int = 1, *, ignore_index: int = -100
) -> Tensor:
    """1 - ``balanced_accuracy``, the error that the library's methods minimize: a scalar, NaN without samples.

    Formula:
        BER = 1/K sum_y P(argmax f(x) != y | y), over the K classes that occur

    Args:
        predictions: [N, C] logits, or [N] predicted class indices.
        target: [N] class indices.

    ``num_classes``, ``k`` and ``ignore_index`` are those of ``count_hits``.

    >>> balanced_error(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), num_classes=3).item()
    0.25

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (2).
    """
    return balanced_error_from_counts(*count_hits(predictions, target, num_classes, k, ignore_index=ignore_index))


def balanced_error_from_counts(hits: Tensor, counts: Tensor) -> Tensor:
    """``balanced_error`` of what ``count_hits`` counted, two [C].

    >>> balanced_error_from_counts(torch.tensor([1, 1, 0]), torch.tensor([1, 2, 0])).item()
    0.25
    """
    return 1 - balanced_accuracy_from_counts(hits, counts)


def group_accuracy(
    predictions: Tensor,
    target: Tensor,
    groups: Mapping[str, Tensor],
    num_classes: int | None = None,
    k: int = 1,
    *,
    ignore_index: int = -100,
) -> dict[str, Tensor]:
    """``balanced_accuracy`` within each group of classes; NaN for a group without samples.

    Args:
        predictions: [N, C] logits, or [N] predicted class indices.
        target: [N] class indices.
        groups: class indices by name, as from ``ClassPrior.groups``.

    ``num_classes``, ``k`` and ``ignore_index`` are those of ``count_hits``.

    >>> groups = {"head": torch.tensor([0]), "tail": torch.tensor([1, 2])}
    >>> accuracy = group_accuracy(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), groups, num_classes=3)
    >>> accuracy["head"].item(), accuracy["tail"].item()
    (1.0, 0.5)
    """
    hits, counts = count_hits(predictions, target, num_classes, k, ignore_index=ignore_index)
    return group_accuracy_from_counts(hits, counts, check_groups(groups, len(counts)))


def group_accuracy_from_counts(hits: Tensor, counts: Tensor, groups: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``group_accuracy`` of what ``count_hits`` counted, two [C].

    >>> groups = {"head": torch.tensor([0]), "tail": torch.tensor([1, 2])}
    >>> group_accuracy_from_counts(torch.tensor([1, 1, 0]), torch.tensor([1, 2, 0]), groups)["tail"].item()
    0.5
    """
    return {name: balanced_accuracy_from_counts(hits[classes], counts[classes]) for name, classes in groups.items()}
