"""Accuracy per class, balanced, and by head, torso and tail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from longtail.metrics._base import (
    check_groups,
    check_indices,
    check_positive,
    check_top_k,
    classes_without_samples,
    counted_samples,
    synced,
)

__all__ = [
    "count_hits",
    "per_class_accuracy",
    "balanced_accuracy",
    "group_accuracy",
    "BalancedAccuracy",
    "BalancedError",
    "PerClassAccuracy",
    "GroupAccuracy",
]


def count_hits(
    predictions: Tensor, target: Tensor, num_classes: int, top_k: int = 1, *, ignore_index: int = -100
) -> tuple[Tensor, Tensor]:
    """How many samples of each class are predicted right, and how many there are.

    Args:
        predictions: [N, C] logits (any scores; the largest wins), or [N] predicted class indices.
        target: [N] class indices.
        num_classes: C.
        top_k: how many of the largest logits may be right. Equal logits rank by class index, smaller first.
        ignore_index: a sample with this target does not count.

    Returns:
        Two [C] int64: hits and counts.

    >>> hits, counts = count_hits(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), num_classes=3)
    >>> hits.tolist(), counts.tolist()
    ([1, 1, 0], [1, 2, 0])
    """
    check_top_k(top_k, num_classes)
    predictions, target = counted_samples(predictions, target, num_classes, ignore_index)
    if predictions.ndim == 2:
        is_hit = _rank_is_below(top_k, predictions, target)
    elif top_k == 1:
        check_indices("predictions", predictions, num_classes)
        is_hit = predictions == target
    else:
        raise ValueError(f"top_k={top_k} needs logits [N, C]. Got predicted indices {tuple(predictions.shape)}.")
    return torch.bincount(target[is_hit], minlength=num_classes), torch.bincount(target, minlength=num_classes)


def per_class_accuracy(hits: Tensor, counts: Tensor) -> Tensor:
    """[C] float64, the share of each class's samples that are right (its recall); NaN for a class without samples.

    Args:
        hits: [C] from ``count_hits``.
        counts: [C] from ``count_hits``.

    >>> per_class_accuracy(torch.tensor([1, 1, 0]), torch.tensor([1, 2, 0])).tolist()
    [1.0, 0.5, nan]
    """
    return hits.double() / counts.double()


def balanced_accuracy(hits: Tensor, counts: Tensor) -> Tensor:
    """The mean of ``per_class_accuracy`` over the classes that have samples: a scalar, NaN if none has.

    Args:
        hits: [C] from ``count_hits``.
        counts: [C] from ``count_hits``.

    >>> balanced_accuracy(torch.tensor([1, 1, 0]), torch.tensor([1, 2, 0])).item()
    0.75

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (2), as 1 - balanced error.
    """
    return per_class_accuracy(hits, counts).nanmean()


def group_accuracy(hits: Tensor, counts: Tensor, groups: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``balanced_accuracy`` within each group of classes; NaN for a group without samples.

    Args:
        hits: [C] from ``count_hits``.
        counts: [C] from ``count_hits``.
        groups: class indices by name, as from ``ClassPrior.groups``.

    >>> groups = {"head": torch.tensor([0]), "tail": torch.tensor([1, 2])}
    >>> {k: v.item() for k, v in group_accuracy(torch.tensor([1, 1, 0]), torch.tensor([1, 2, 0]), groups).items()}
    {'head': 1.0, 'tail': 0.5}
    """
    return {name: balanced_accuracy(hits[classes], counts[classes]) for name, classes in groups.items()}


class BalancedAccuracy(Metric):
    """``balanced_accuracy`` over batches and processes: the mean recall of the classes with samples.

    Args:
        num_classes: C. The state is two vectors of this length.
        top_k: how many of the largest logits may be right.
        ignore_index: a sample with this target does not count.
        **kwargs: what every ``torchmetrics.Metric`` takes.

    Use when:
        Every class matters the same, however rare it is.
    Avoid when:
        Many classes have one or two samples: their recalls are noise, and all count.
    Equals:
        Accuracy, when all classes have equally many samples; 1 - ``BalancedError``.

    >>> metric = BalancedAccuracy(num_classes=3)
    >>> metric.update(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]))
    >>> metric.compute().item(), metric.missing_classes().tolist()
    (0.75, [2])

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (2).
    """

    is_differentiable: bool = False
    higher_is_better: bool = True
    full_state_update: bool = False

    hits: Tensor
    counts: Tensor

    def __init__(self, num_classes: int, top_k: int = 1, *, ignore_index: int = -100, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        _add_class_states(self, num_classes, top_k)
        self.num_classes = num_classes
        self.top_k = top_k
        self.ignore_index = ignore_index

    def update(self, predictions: Tensor, target: Tensor) -> None:
        """Count a batch: logits [N, C] or predicted indices [N], and targets [N]."""
        hits, counts = count_hits(predictions, target, self.num_classes, self.top_k, ignore_index=self.ignore_index)
        self.hits += hits
        self.counts += counts

    def compute(self) -> Tensor:
        """The balanced accuracy so far: a scalar, NaN without samples."""
        return balanced_accuracy(self.hits, self.counts)

    def missing_classes(self) -> Tensor:
        """Indices of classes without samples so far. Like ``compute``, to be called by all processes."""
        with synced(self):
            return classes_without_samples(self.counts)


class BalancedError(Metric):
    """1 - ``balanced_accuracy`` over batches and processes: the error that the library's methods minimize.

    Args:
        num_classes: C. The state is two vectors of this length.
        top_k: how many of the largest logits may be right.
        ignore_index: a sample with this target does not count.
        **kwargs: what every ``torchmetrics.Metric`` takes.

    Use when:
        Results are compared with papers that report the balanced error.
    Avoid when:
        As ``BalancedAccuracy``.
    Equals:
        1 - ``BalancedAccuracy``.

    >>> metric = BalancedError(num_classes=3)
    >>> metric(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])).item()
    0.25

    Reference:
        Menon et al., "Long-tail learning via logit adjustment", eq. (2).
    """

    is_differentiable: bool = False
    higher_is_better: bool = False
    full_state_update: bool = False

    hits: Tensor
    counts: Tensor

    def __init__(self, num_classes: int, top_k: int = 1, *, ignore_index: int = -100, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        _add_class_states(self, num_classes, top_k)
        self.num_classes = num_classes
        self.top_k = top_k
        self.ignore_index = ignore_index

    def update(self, predictions: Tensor, target: Tensor) -> None:
        """Count a batch: logits [N, C] or predicted indices [N], and targets [N]."""
        hits, counts = count_hits(predictions, target, self.num_classes, self.top_k, ignore_index=self.ignore_index)
        self.hits += hits
        self.counts += counts

    def compute(self) -> Tensor:
        """The balanced error so far: a scalar, NaN without samples."""
        return 1 - balanced_accuracy(self.hits, self.counts)

    def missing_classes(self) -> Tensor:
        """Indices of classes without samples so far. Like ``compute``, to be called by all processes."""
        with synced(self):
            return classes_without_samples(self.counts)


class PerClassAccuracy(Metric):
    """``per_class_accuracy`` over batches and processes: every class's recall.

    Args:
        num_classes: C. The state is two vectors of this length.
        top_k: how many of the largest logits may be right.
        ignore_index: a sample with this target does not count.
        **kwargs: what every ``torchmetrics.Metric`` takes.

    Use when:
        You want to see which classes fail.
    Avoid when:
        One number is to be compared: use ``BalancedAccuracy`` or ``GroupAccuracy``.
    Equals:
        ``BalancedAccuracy``, in the mean over classes that are not NaN.

    >>> metric = PerClassAccuracy(num_classes=3)
    >>> metric(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])).tolist()
    [1.0, 0.5, nan]
    """

    is_differentiable: bool = False
    higher_is_better: bool = True
    full_state_update: bool = False

    hits: Tensor
    counts: Tensor

    def __init__(self, num_classes: int, top_k: int = 1, *, ignore_index: int = -100, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        _add_class_states(self, num_classes, top_k)
        self.num_classes = num_classes
        self.top_k = top_k
        self.ignore_index = ignore_index

    def update(self, predictions: Tensor, target: Tensor) -> None:
        """Count a batch: logits [N, C] or predicted indices [N], and targets [N]."""
        hits, counts = count_hits(predictions, target, self.num_classes, self.top_k, ignore_index=self.ignore_index)
        self.hits += hits
        self.counts += counts

    def compute(self) -> Tensor:
        """[C] float64, each class's accuracy so far; NaN for a class without samples."""
        return per_class_accuracy(self.hits, self.counts)

    def missing_classes(self) -> Tensor:
        """Indices of classes without samples so far. Like ``compute``, to be called by all processes."""
        with synced(self):
            return classes_without_samples(self.counts)


class GroupAccuracy(Metric):
    """``group_accuracy`` over batches and processes: the mean recall of head, torso and tail classes.

    Args:
        groups: class indices by name, as from ``ClassPrior.groups`` or ``ClassPrior.quantile_groups``. A group may be
            empty, and groups may overlap.
        num_classes: C. The state is two vectors of this length.
        top_k: how many of the largest logits may be right.
        ignore_index: a sample with this target does not count.
        **kwargs: what every ``torchmetrics.Metric`` takes.

    Use when:
        You want to see what a method takes from frequent classes and gives to rare ones.
    Avoid when:
        Groups hold very few classes with few samples.
    Equals:
        ``BalancedAccuracy``, for one group of all classes.

    >>> metric = GroupAccuracy({"head": torch.tensor([0]), "tail": torch.tensor([1, 2])}, num_classes=3)
    >>> {name: value.item() for name, value in metric(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])).items()}
    {'head': 1.0, 'tail': 0.5}

    Deviates:
        Some published numbers pool the samples of a group; here, as in the balanced error, classes count the same.

    Reference:
        Kang et al. (2020), "Decoupling representation and classifier for long-tailed recognition", section 5.1.
    """

    is_differentiable: bool = False
    higher_is_better: bool = True
    full_state_update: bool = False

    hits: Tensor
    counts: Tensor

    def __init__(
        self,
        groups: Mapping[str, Tensor],
        num_classes: int,
        top_k: int = 1,
        *,
        ignore_index: int = -100,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        _add_class_states(self, num_classes, top_k)
        self.groups = check_groups(groups, num_classes)
        self.num_classes = num_classes
        self.top_k = top_k
        self.ignore_index = ignore_index

    def update(self, predictions: Tensor, target: Tensor) -> None:
        """Count a batch: logits [N, C] or predicted indices [N], and targets [N]."""
        hits, counts = count_hits(predictions, target, self.num_classes, self.top_k, ignore_index=self.ignore_index)
        self.hits += hits
        self.counts += counts

    def compute(self) -> dict[str, Tensor]:
        """The accuracy of each group so far, by name; NaN for a group without samples."""
        return group_accuracy(self.hits, self.counts, self.groups)

    def missing_classes(self) -> Tensor:
        """Indices of classes without samples so far. Like ``compute``, to be called by all processes."""
        with synced(self):
            return classes_without_samples(self.counts)


def _rank_is_below(top_k: int, logits: Tensor, target: Tensor) -> Tensor:
    """[N] whether fewer than ``top_k`` classes come before the target. Unlike ``topk``, ties have a fixed order."""
    if top_k == 1:
        return logits.max(dim=1).indices == target
    at_target = logits.gather(1, target[:, None])
    comes_first = torch.arange(logits.shape[1], device=logits.device) < target[:, None]
    rank = (logits > at_target).sum(dim=1) + ((logits == at_target) & comes_first).sum(dim=1)
    return rank < top_k


def _add_class_states(metric: Metric, num_classes: int, top_k: int) -> None:
    check_positive("num_classes", num_classes)
    check_top_k(top_k, num_classes)
    for name in ("hits", "counts"):
        metric.add_state(name, torch.zeros(num_classes, dtype=torch.int64), dist_reduce_fx="sum")
