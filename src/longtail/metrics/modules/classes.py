"""Accuracy per class, balanced, and by group, over batches and processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from longtail._core.predictions import check_groups
from longtail.metrics._base import ClassCountMetric
from longtail.metrics.classes import (
    balanced_accuracy_from_counts,
    balanced_error_from_counts,
    group_accuracy_from_counts,
    per_class_accuracy_from_counts,
)

__all__ = ["BalancedAccuracy", "BalancedError", "PerClassAccuracy", "GroupAccuracy"]


class BalancedAccuracy(ClassCountMetric):
    """``balanced_accuracy`` over batches and processes: the mean recall of the classes with samples.

    Args:
        num_classes: C. The state is two vectors of this length.
        k: how many of the largest logits may be right.
        ignore_index: a sample with this target does not count.
        **kwargs: what every ``torchmetrics.Metric`` takes.

    Use when:
        Every class matters the same, however rare it is.
    Avoid when:
        Many classes have one or two samples: their recalls are noise, and all count.
    Special cases:
        Accuracy, when all classes have equally many samples; 1 - ``BalancedError``.

    >>> metric = BalancedAccuracy(num_classes=3)
    >>> metric.update(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]))
    >>> metric.compute().item(), metric.missing_classes().tolist()
    (0.75, [2])

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (2).
    """

    def compute(self) -> Tensor:
        """The balanced accuracy so far: a scalar, NaN without samples."""
        return balanced_accuracy_from_counts(self.hits, self.counts)


class BalancedError(ClassCountMetric):
    """``balanced_error`` over batches and processes: the error that the library's methods minimize.

    Its arguments are those of ``BalancedAccuracy``.

    Use when:
        Results are compared with papers that report the balanced error.
    Avoid when:
        As ``BalancedAccuracy``.
    Special cases:
        1 - ``BalancedAccuracy``.

    >>> metric = BalancedError(num_classes=3)
    >>> metric(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])).item()
    0.25

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (2).
    """

    higher_is_better: bool = False

    def compute(self) -> Tensor:
        """The balanced error so far: a scalar, NaN without samples."""
        return balanced_error_from_counts(self.hits, self.counts)


class PerClassAccuracy(ClassCountMetric):
    """``per_class_accuracy`` over batches and processes: every class's recall.

    Its arguments are those of ``BalancedAccuracy``.

    Use when:
        You want to see which classes fail.
    Avoid when:
        One number is to be compared: use ``BalancedAccuracy`` or ``GroupAccuracy``.
    Special cases:
        ``BalancedAccuracy``, in the mean over classes that are not NaN.

    >>> metric = PerClassAccuracy(num_classes=3)
    >>> metric(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])).tolist()
    [1.0, 0.5, nan]
    """

    def compute(self) -> Tensor:
        """[C] float64, each class's accuracy so far; NaN for a class without samples."""
        return per_class_accuracy_from_counts(self.hits, self.counts)


class GroupAccuracy(ClassCountMetric):
    """``group_accuracy`` over batches and processes: the mean recall of head, torso and tail classes.

    Args:
        groups: class indices by name, as from ``ClassPrior.groups`` or ``ClassPrior.quantile_groups``. A group may be
            empty, and groups may overlap.
        num_classes: C. The state is two vectors of this length.
        k: how many of the largest logits may be right.
        ignore_index: a sample with this target does not count.
        **kwargs: what every ``torchmetrics.Metric`` takes.

    Use when:
        You want to see what a method takes from frequent classes and gives to rare ones.
    Avoid when:
        Groups hold very few classes with few samples.
    Special cases:
        ``BalancedAccuracy``, for one group of all classes.

    >>> metric = GroupAccuracy({"head": torch.tensor([0]), "tail": torch.tensor([1, 2])}, num_classes=3)
    >>> {name: value.item() for name, value in metric(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])).items()}
    {'head': 1.0, 'tail': 0.5}

    Deviates:
        Some published numbers pool the samples of a group; here, as in the balanced error, classes count the same.

    Reference:
        Kang et al. (2020), "Decoupling representation and classifier for long-tailed recognition", section 5.1.
    """

    def __init__(
        self,
        groups: Mapping[str, Tensor],
        num_classes: int,
        k: int = 1,
        *,
        ignore_index: int = -100,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_classes, k, ignore_index=ignore_index, **kwargs)
        self.groups = check_groups(groups, num_classes)

    def compute(self) -> dict[str, Tensor]:
        """The accuracy of each group so far, by name; NaN for a group without samples."""
        return group_accuracy_from_counts(self.hits, self.counts, self.groups)
