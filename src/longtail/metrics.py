"""How good predictions are for each class, for groups of classes and for classes on average, and how calibrated.

A metric is two pure functions, one that counts a batch and one that turns counts into a value, and a small
``torchmetrics.Metric`` that adds the counts up over batches and processes. What has no sample has no value: it is
NaN, never 0, and averages leave it out. (That ``compute`` warns before any ``update`` is torchmetrics' own habit.)
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

__all__ = [
    "BalancedAccuracy",
    "BalancedCalibrationError",
    "BalancedError",
    "CalibrationError",
    "GroupAccuracy",
    "PerClassAccuracy",
    "Reliability",
    "balanced_accuracy",
    "balanced_bins",
    "bin_confidences",
    "calibration_error",
    "count_hits",
    "group_accuracy",
    "per_class_accuracy",
    "reliability",
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
    _check_top_k(top_k, num_classes)
    predictions, target = _counted_samples(predictions, target, num_classes, ignore_index)
    if predictions.ndim == 2:
        is_hit = _rank_is_below(top_k, predictions, target)
    elif top_k == 1:
        _check_indices("predictions", predictions, num_classes)
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


class Reliability(NamedTuple):
    """The rows of a reliability diagram, one a bin of confidence, equally wide from 0 to 1."""

    confidence: Tensor
    """[B] float64, the mean confidence of the bin's samples; NaN if it has none."""
    accuracy: Tensor
    """[B] float64, the share of them that is right; NaN if there are none."""
    share: Tensor
    """[B] float64, the bin's share of all samples (of all weight, where classes are balanced)."""


def bin_confidences(
    logits: Tensor, target: Tensor, num_bins: int = 15, *, by_class: bool = False, ignore_index: int = -100
) -> tuple[Tensor, Tensor, Tensor]:
    """Sort samples into bins by the softmax probability of their predicted class.

    Bin b holds confidences in (b / B, (b + 1) / B].

    Args:
        logits: [N, C]. For probabilities pass their logarithm.
        target: [N] class indices.
        num_bins: B.
        by_class: whether to keep the samples of each true class apart.
        ignore_index: a sample with this target does not count.

    Returns:
        Samples (int64), right ones (int64) and summed confidences (float64) of each bin: three [B], or with
        ``by_class`` three [C, B].

    >>> logits = torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log()
    >>> counts, hits, confidences = bin_confidences(logits, torch.tensor([0, 1]), num_bins=2)
    >>> counts.tolist(), hits.tolist(), [round(c, 3) for c in confidences.tolist()]
    ([0, 2], [0, 1], [0.0, 1.5])
    """
    if logits.ndim != 2:
        raise ValueError(f"calibration needs logits [N, C]. Got shape {tuple(logits.shape)}.")
    _check_positive("num_bins", num_bins)
    num_classes = logits.shape[1]
    logits, target = _counted_samples(logits, target, num_classes, ignore_index)
    confidence, predicted = _top_confidence(logits)
    cell = ((confidence * num_bins).ceil().long() - 1).clamp(0, num_bins - 1)
    shape = (num_classes, num_bins) if by_class else (num_bins,)
    if by_class:
        cell += target * num_bins
    size = num_bins * num_classes if by_class else num_bins
    confidences = confidence.new_zeros(size, dtype=torch.float64).index_add_(0, cell, confidence.double())
    counts = torch.bincount(cell, minlength=size)
    hits = torch.bincount(cell[predicted == target], minlength=size)
    return counts.view(shape), hits.view(shape), confidences.view(shape)


def balanced_bins(counts: Tensor, hits: Tensor, confidences: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The bins of all classes together, every class with samples counting the same.

    Args:
        counts: [C, B] from ``bin_confidences`` by class.
        hits: [C, B] likewise.
        confidences: [C, B] likewise.

    Returns:
        Three [B] float64: the same sums with samples weighted by 1 / n[y].

    >>> counts = torch.tensor([[0, 3], [1, 0]])
    >>> balanced_bins(counts, counts, counts.double())[0].tolist()
    [1.0, 1.0]
    """
    # A class without samples has nothing but zeros to weight.
    weights = 1 / counts.sum(dim=1).clamp_min(1).double()
    return weights @ counts.double(), weights @ hits.double(), weights @ confidences


def reliability(counts: Tensor, hits: Tensor, confidences: Tensor) -> Reliability:
    """The rows of the reliability diagram.

    Args:
        counts: [B] from ``bin_confidences`` or ``balanced_bins``.
        hits: [B] likewise.
        confidences: [B] likewise.

    >>> reliability(torch.tensor([0, 4]), torch.tensor([0, 3]), torch.tensor([0.0, 3.0])).accuracy.tolist()
    [nan, 0.75]
    """
    weight = counts.double()
    return Reliability(confidences.double() / weight, hits.double() / weight, weight / weight.sum())


def calibration_error(counts: Tensor, hits: Tensor, confidences: Tensor) -> Tensor:
    """The expected calibration error: how far confidence and accuracy lie apart, on average.

    Formula:
        sum_b share[b] * |accuracy[b] - confidence[b]|

    Args:
        counts: [B] from ``bin_confidences`` or ``balanced_bins``.
        hits: [B] likewise.
        confidences: [B] likewise.

    Returns:
        A scalar in [0, 1]; NaN without samples.

    >>> calibration_error(torch.tensor([2, 2]), torch.tensor([0, 2]), torch.tensor([0.5, 1.5])).item()
    0.25

    Reference:
        Guo et al. (2017), "On calibration of modern neural networks", eq. (3).
    """
    return (hits.double() - confidences.double()).abs().sum() / counts.double().sum()


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
        with _synced(self):
            return _without_samples(self.counts)


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
        with _synced(self):
            return _without_samples(self.counts)


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
        with _synced(self):
            return _without_samples(self.counts)


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
        self.groups = _checked_groups(groups, num_classes)
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
        with _synced(self):
            return _without_samples(self.counts)


class CalibrationError(Metric):
    """``calibration_error`` of the predicted class, over batches and processes.

    Args:
        num_bins: B. The state is three vectors of this length, whatever the number of classes.
        ignore_index: a sample with this target does not count.
        **kwargs: what every ``torchmetrics.Metric`` takes.

    Use when:
        Probabilities are used, and test data has the label distribution that matters.
    Avoid when:
        Rare classes matter: frequent ones hide how overconfident their predictions are. Use
        ``BalancedCalibrationError``.
    Equals:
        ``BalancedCalibrationError``, when all classes have equally many samples.

    >>> metric = CalibrationError(num_bins=2)
    >>> metric.update(torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log(), torch.tensor([0, 1]))
    >>> round(metric.compute().item(), 6), metric.reliability().share.tolist()
    (0.25, [0.0, 1.0])

    Reference:
        Guo et al. (2017), "On calibration of modern neural networks", eq. (3).
    """

    is_differentiable: bool = False
    higher_is_better: bool = False
    full_state_update: bool = False

    counts: Tensor
    hits: Tensor
    confidences: Tensor

    def __init__(self, num_bins: int = 15, *, ignore_index: int = -100, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        _check_positive("num_bins", num_bins)
        _add_bin_states(self, (num_bins,))
        self.num_bins = num_bins
        self.ignore_index = ignore_index

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Count a batch: logits [N, C] and targets [N]."""
        counts, hits, confidences = bin_confidences(logits, target, self.num_bins, ignore_index=self.ignore_index)
        self.counts += counts
        self.hits += hits
        self.confidences += confidences

    def compute(self) -> Tensor:
        """The expected calibration error so far: a scalar, NaN without samples."""
        return calibration_error(self.counts, self.hits, self.confidences)

    def reliability(self) -> Reliability:
        """The reliability diagram's rows so far. Like ``compute``, to be called by all processes."""
        with _synced(self):
            return reliability(self.counts, self.hits, self.confidences)


class BalancedCalibrationError(Metric):
    """``calibration_error`` of the predicted class with every true class counting the same.

    Formula:
        sum_b share[b] * |accuracy[b] - confidence[b]|, a sample of class y weighing 1 / n[y]

    Args:
        num_classes: C.
        num_bins: B. The state is three [C, B] matrices.
        ignore_index: a sample with this target does not count.
        **kwargs: what every ``torchmetrics.Metric`` takes.

    Use when:
        A model is adjusted or trained for balanced accuracy: its probabilities are meant for balanced labels.
    Avoid when:
        The test data is balanced already, or C is so large that 24 * C * B bytes matter.
    Equals:
        ``CalibrationError`` of the samples weighted by 1 / n[y].

    >>> metric = BalancedCalibrationError(num_classes=2, num_bins=2)
    >>> logits = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1]]).log()
    >>> metric.update(logits, torch.tensor([0, 0, 1]))
    >>> round(metric.compute().item(), 6), metric.missing_classes().tolist()
    (0.4, [])

    Deviates:
        The reference weights samples alike; the weights are those of the balanced error.

    Reference:
        Guo et al. (2017), "On calibration of modern neural networks", eq. (3).
    """

    is_differentiable: bool = False
    higher_is_better: bool = False
    full_state_update: bool = False

    counts: Tensor
    hits: Tensor
    confidences: Tensor

    def __init__(self, num_classes: int, num_bins: int = 15, *, ignore_index: int = -100, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        _check_positive("num_classes", num_classes)
        _check_positive("num_bins", num_bins)
        _add_bin_states(self, (num_classes, num_bins))
        self.num_classes = num_classes
        self.num_bins = num_bins
        self.ignore_index = ignore_index

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Count a batch: logits [N, C] and targets [N]."""
        if logits.shape[1:] != (self.num_classes,):
            raise ValueError(f"logits must be [N, {self.num_classes}]. Got shape {tuple(logits.shape)}.")
        counts, hits, confidences = bin_confidences(
            logits, target, self.num_bins, by_class=True, ignore_index=self.ignore_index
        )
        self.counts += counts
        self.hits += hits
        self.confidences += confidences

    def compute(self) -> Tensor:
        """The class-balanced expected calibration error so far: a scalar, NaN without samples."""
        return calibration_error(*balanced_bins(self.counts, self.hits, self.confidences))

    def reliability(self) -> Reliability:
        """The class-balanced reliability diagram's rows so far. Like ``compute``, to be called by all processes."""
        with _synced(self):
            return reliability(*balanced_bins(self.counts, self.hits, self.confidences))

    def missing_classes(self) -> Tensor:
        """Indices of classes without samples so far. Like ``compute``, to be called by all processes."""
        with _synced(self):
            return _without_samples(self.counts.sum(dim=1))


def _counted_samples(
    predictions: Tensor, target: Tensor, num_classes: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """The samples that are not ignored, once all of them are known to be well formed."""
    is_logits = predictions.ndim == 2 and predictions.is_floating_point()
    if not (is_logits or (predictions.ndim == 1 and _is_integer(predictions))):
        raise ValueError(
            "predictions must be floating-point logits [N, C] or integer class indices [N]. "
            f"Got {predictions.dtype} {tuple(predictions.shape)}."
        )
    if is_logits and predictions.shape[1] != num_classes:
        raise ValueError(f"logits must be [N, {num_classes}]. Got shape {tuple(predictions.shape)}.")
    if target.shape != predictions.shape[:1] or not _is_integer(target):
        raise ValueError(
            f"target must be [{len(predictions)}] integer class indices. Got {target.dtype} {tuple(target.shape)}."
        )
    target = target.long()
    is_counted = target != ignore_index
    if not is_counted.all():
        predictions, target = predictions[is_counted], target[is_counted]
    _check_indices("target", target, num_classes)
    # The maximum of a row is NaN if anything in it is: no [N, C] mask is needed.
    if is_logits and predictions.amax(dim=1).isnan().any():
        raise ValueError("logits must not be NaN. Got NaN; look for a diverged model.")
    return predictions.detach(), target


def _rank_is_below(top_k: int, logits: Tensor, target: Tensor) -> Tensor:
    """[N] whether fewer than ``top_k`` classes come before the target. Unlike ``topk``, ties have a fixed order."""
    if top_k == 1:
        return logits.max(dim=1).indices == target
    at_target = logits.gather(1, target[:, None])
    comes_first = torch.arange(logits.shape[1], device=logits.device) < target[:, None]
    rank = (logits > at_target).sum(dim=1) + ((logits == at_target) & comes_first).sum(dim=1)
    return rank < top_k


def _top_confidence(logits: Tensor) -> tuple[Tensor, Tensor]:
    """[N] the largest softmax probability and [N] its class."""
    wide = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    top, predicted = wide.max(dim=1)
    confidence = (top - wide.logsumexp(dim=1)).exp()
    if confidence.isnan().any():
        raise ValueError("the largest logit of a sample must be finite, or it has no confidence. Got infinity.")
    return confidence, predicted


def _add_class_states(metric: Metric, num_classes: int, top_k: int) -> None:
    _check_positive("num_classes", num_classes)
    _check_top_k(top_k, num_classes)
    for name in ("hits", "counts"):
        metric.add_state(name, torch.zeros(num_classes, dtype=torch.int64), dist_reduce_fx="sum")


def _add_bin_states(metric: Metric, shape: tuple[int, ...]) -> None:
    for name, dtype in (("counts", torch.int64), ("hits", torch.int64), ("confidences", torch.float64)):
        metric.add_state(name, torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")


def _synced(metric: Metric) -> AbstractContextManager[None]:
    """Within it, the states are those of all processes, as they are in ``compute``."""
    return metric.sync_context(dist_sync_fn=metric.dist_sync_fn, should_sync=metric.sync_on_compute)


def _without_samples(counts: Tensor) -> Tensor:
    return torch.nonzero(counts == 0).flatten()


def _checked_groups(groups: Mapping[str, Tensor], num_classes: int) -> dict[str, Tensor]:
    if not groups:
        raise ValueError("groups must name at least one group of classes. Got none.")
    for name, classes in groups.items():
        if classes.ndim != 1 or not _is_integer(classes):
            raise ValueError(
                f"group {name!r} must be a vector of class indices. Got {classes.dtype} {tuple(classes.shape)}."
            )
        _check_indices(f"group {name!r}", classes, num_classes)
        if len(set(classes.tolist())) != len(classes):
            raise ValueError(f"group {name!r} must name every class once. Got one twice.")
    return {name: classes.long() for name, classes in groups.items()}


def _is_integer(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def _check_indices(name: str, indices: Tensor, num_classes: int) -> None:
    if indices.numel() == 0:
        return
    low, high = (int(value) for value in torch.aminmax(indices))
    if low < 0 or high >= num_classes:
        hint = " (or ignore_index)" if name == "target" else ""
        raise ValueError(f"{name} must be in 0..{num_classes - 1}{hint}. Got {low if low < 0 else high}.")


def _check_top_k(top_k: int, num_classes: int) -> None:
    if not 1 <= top_k <= num_classes:
        raise ValueError(f"top_k must be in 1..{num_classes}. Got {top_k}.")


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1. Got {value}.")
