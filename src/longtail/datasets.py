"""Long-tailed data from balanced data: profiles of class counts, and samples that follow them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail._core.checks import at_least
from longtail._core.labels import IntArray, label_array
from longtail._core.suggestions import look_up

__all__ = [
    "PROFILES",
    "Profile",
    "make_long_tailed",
    "long_tailed_indices",
    "exponential_counts",
    "step_counts",
    "pareto_counts",
    "coco_mlt_counts",
    "voc_mlt_counts",
    "shuffle_counts",
    "stratified_holdout",
    "subsample",
]


Profile = Callable[[int, int, float], Sequence[int]]
"""Largest count, number of classes and ratio -> samples to keep of each class."""


def make_long_tailed(
    X: Any,
    y: Any,
    *,
    ratio: float = 100.0,
    profile: Profile | str | None = None,
    num_max: int | None = None,
    shuffle_classes: bool = False,
    random_state: int = 0,
) -> tuple[Any, Any]:
    """Keep fewer samples of each class than of the one before it, so that balanced data become long-tailed.

    Args:
        X: [N, ...] a NumPy array, tensor, SciPy sparse matrix, list, or pandas or polars frame.
        y: [N] class indices 0 .. C - 1, or names of classes, which are sorted; an array, tensor, list or series.
        ratio: imbalance, >= 1: the largest class count over the smallest.
        profile: how counts fall from the first class to the last: a function, or its name, such as "step"; default:
            ``exponential_counts``, as in CIFAR-10-LT.
        num_max: samples to keep of the most frequent class; default: as many as the rarest class has, which all
            classes can give.
        shuffle_classes: whether a class's place in the profile is drawn at random; else class 0 keeps most.
        random_state: chooses samples and, if shuffled, places.

    Returns:
        What is kept of X and of y, in their order and as what they were.

    >>> X, y = np.arange(40).reshape(20, 2), np.repeat([0, 1], 10)
    >>> X_tail, y_tail = make_long_tailed(X, y, ratio=5)
    >>> np.bincount(y_tail).tolist(), X_tail.shape
    ([10, 2], (12, 2))

    Reference:
        Cui et al. (2019), "Class-balanced loss based on effective number of samples", section 5.1, for the profile.
    """
    num_rows, num_labels = _num_rows(X), _num_rows(y)
    if num_rows != num_labels:
        raise ValueError(f"make_long_tailed: X and y must have one length. Got {num_rows} and {num_labels}.")
    indices = long_tailed_indices(
        y,
        ratio=ratio,
        profile=profile,
        num_max=num_max,
        shuffle_classes=shuffle_classes,
        random_state=random_state,
    )
    return _take(X, indices), _take(y, indices)


def long_tailed_indices(
    y: Any,
    *,
    ratio: float = 100.0,
    profile: Profile | str | None = None,
    num_max: int | None = None,
    shuffle_classes: bool = False,
    random_state: int = 0,
) -> Tensor:
    """Indices of the samples that ``make_long_tailed`` keeps: for ``torch.utils.data.Subset``.

    Args:
        y: [N] class indices or names, or a dataset that has class indices.
        ratio: imbalance, >= 1.
        profile: a function or its name in ``PROFILES``; default: ``exponential_counts``.
        num_max: samples to keep of the most frequent class; default: as many as the rarest class has.
        shuffle_classes: whether a class's place in the profile is drawn at random.
        random_state: chooses samples and, if shuffled, places.

    Returns:
        int64 indices in rising order.

    >>> len(long_tailed_indices([0] * 10 + [1] * 10, ratio=5))
    12
    """
    labels = _class_indices(y)
    if labels.size == 0 or labels.min() < 0:
        got = "no samples" if labels.size == 0 else f"{labels.min()}"
        raise ValueError(f"make_long_tailed: labels must be class indices 0 .. C - 1. Got {got}.")
    available = np.bincount(labels)
    if available.min() == 0:
        raise ValueError(
            f"make_long_tailed: every class 0 .. {len(available) - 1} must have samples. "
            f"Class {int(available.argmin())} has none; encode the labels first."
        )
    largest = int(available.min()) if num_max is None else at_least(num_max, 1, "num_max")
    fall = look_up(PROFILES, profile, "profile") if isinstance(profile, str) else profile or exponential_counts
    counts = list(fall(largest, len(available), ratio))
    if shuffle_classes:
        counts = shuffle_counts(counts, random_state)
    return subsample(labels, counts, random_state)


def _class_indices(y: Any) -> IntArray:
    """[N] class indices; names of classes count in sorted order."""
    is_text = isinstance(y, list | tuple) and len(y) > 0 and isinstance(y[0], str)
    names = np.asarray(y) if is_text or getattr(getattr(y, "dtype", None), "kind", "") in "OUT" else None
    if names is None or names.ndim != 1 or not all(isinstance(name, str) for name in names.tolist()):
        return label_array(y)
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def exponential_counts(num_max: int, num_classes: int, ratio: float) -> list[int]:
    """EXP: counts fall by one constant factor from class to class.

    Formula:
        n[c] = floor(num_max * (1 / ratio)^(c / (C - 1)))

    Args:
        num_max: samples of class 0.
        num_classes: C.
        ratio: imbalance, >= 1; the last class keeps num_max / ratio.

    The order of operations is that of the code which made CIFAR-10-LT and CIFAR-100-LT, so that rounding is too.

    >>> exponential_counts(5000, 10, 100)
    [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    >>> sum(exponential_counts(500, 100, 100))
    10847

    Reference:
        Cui et al. (2019), "Class-balanced loss based on effective number of samples", section 5.1; Cao et al. (2019),
        "Learning imbalanced datasets with label-distribution-aware margin loss", section 4.
    """
    _check_profile(num_max, num_classes, ratio)
    rate = 1 / ratio
    return _at_least_one([int(num_max * rate ** (c / max(1, num_classes - 1))) for c in range(num_classes)], ratio)


def step_counts(num_max: int, num_classes: int, ratio: float) -> list[int]:
    """STEP: the first half of the classes keep everything, the second half one in ``ratio``.

    Formula:
        n[c] = num_max for c < C - floor(C / 2), else floor(num_max / ratio)

    Args:
        num_max: samples of a frequent class.
        num_classes: C; where it is odd, the class in the middle is frequent.
        ratio: imbalance, >= 1.

    >>> step_counts(5000, 4, 100)
    [5000, 5000, 50, 50]

    Reference:
        Buda et al. (2018), "A systematic study of the class imbalance problem in convolutional neural networks",
        section 3.1; Cao et al. (2019), section 4.
    """
    _check_profile(num_max, num_classes, ratio)
    num_rare = num_classes // 2
    return _at_least_one([num_max] * (num_classes - num_rare) + [int(num_max * (1 / ratio))] * num_rare, ratio)


def pareto_counts(num_max: int, num_classes: int, ratio: float, power: float = 6.0) -> list[int]:
    """Pareto: counts are a typical draw from a Pareto distribution, as those of ImageNet-LT are one draw.

    Formula:
        x[c] = ((c + 0.7) / (C + 0.4))^(-1 / power) - 1, a Pareto (Lomax) variable at the median rank of draw c of C
        n[c] = round(n_min + (num_max - n_min) * (x[c] - x[C-1]) / (x[0] - x[C-1])), with n_min = num_max / ratio

    Args:
        num_max: samples of class 0.
        num_classes: C.
        ratio: imbalance, >= 1; the last class keeps num_max / ratio.
        power: of the Pareto distribution, > 0; towards infinity it becomes the exponential distribution.

    Deviates:
        ImageNet-LT is one random draw, published as a list file: with its 1280 to 5 images and 1000 classes this
        gives 112,732 images, the published list has 115,846. Use the list file to compare with published numbers.

    >>> counts = pareto_counts(1280, 1000, 256)
    >>> counts[0], counts[500], counts[-1]
    (1280, 71, 5)

    Reference:
        Liu et al. (2019), "Large-scale long-tailed recognition in an open world", section 4: Pareto with power 6.
    """
    _check_profile(num_max, num_classes, ratio)
    if not (math.isfinite(power) and power > 0):
        raise ValueError(f"pareto_counts: power must be a finite number above 0. Got {power}.")
    if num_classes == 1:
        return [num_max]
    draws = [((c + 0.7) / (num_classes + 0.4)) ** (-1 / power) for c in range(num_classes)]
    num_min = num_max / ratio
    scale = (num_max - num_min) / (draws[0] - draws[-1])
    return _at_least_one([round(num_min + scale * (draw - draws[-1])) for draw in draws], ratio)


# fmt: off
COCO_MLT = (
    1128, 624, 585, 498, 460, 366, 292, 276, 237, 207, 200, 189, 175, 173, 164, 153, 137, 127, 126, 119, 113, 100,
    97, 91, 89, 87, 87, 84, 73, 73, 70, 70, 50, 49, 45, 44, 44, 41, 39, 39, 37, 36, 35, 35, 32, 31, 29, 25, 25,
    25, 24, 21, 21, 20, 20, 19, 18, 17, 17, 16, 15, 14, 13, 12, 11, 11, 11, 10, 10, 10, 9, 9, 8, 8, 8, 7, 7, 7, 6,
    6,
)
# fmt: on
VOC_MLT = (775, 479, 249, 240, 154, 100, 82, 64, 48, 34, 29, 20, 17, 14, 11, 8, 7, 6, 5, 4)
"""Training images of each class, most frequent first."""


def coco_mlt_counts(num_max: int, num_classes: int, ratio: float) -> list[int]:
    """COCO-MLT: counts fall as those of its 80 classes do, from 1,128 images to 6.

    Formula:
        n[c] = floor(num_max * (m[c] / m[0])^p), m the published counts, linear in their logarithm between classes,
        p such that the last class keeps num_max / ratio; p = 1 at their own ratio

    Args:
        num_max: samples of class 0.
        num_classes: C.
        ratio: imbalance, >= 1.

    >>> coco_mlt_counts(1128, 80, 188)[:3], coco_mlt_counts(1128, 80, 188)[-1]
    ([1128, 624, 585], 6)

    Reference:
        Wu et al. (2020), "Distribution-balanced loss for multi-label classification in long-tailed datasets", which
        made COCO-MLT and VOC-MLT; counts of its published label matrices.
    """
    return _follow_counts(COCO_MLT, num_max, num_classes, ratio)


def voc_mlt_counts(num_max: int, num_classes: int, ratio: float) -> list[int]:
    """VOC-MLT: counts fall as those of its 20 classes do, from 775 images to 4; else as ``coco_mlt_counts``.

    >>> voc_mlt_counts(775, 20, 193.75)[:3], voc_mlt_counts(775, 20, 193.75)[-1]
    ([775, 479, 249], 4)

    Reference:
        Wu et al. (2020), "Distribution-balanced loss for multi-label classification in long-tailed datasets".
    """
    return _follow_counts(VOC_MLT, num_max, num_classes, ratio)


PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        "exponential": exponential_counts,
        "step": step_counts,
        "pareto": pareto_counts,
        "coco_mlt": coco_mlt_counts,
        "voc_mlt": voc_mlt_counts,
    }
)
"""Name -> a function of the largest class count, the number of classes and the ratio, to counts."""


def _follow_counts(published: Sequence[int], num_max: int, num_classes: int, ratio: float) -> list[int]:
    _check_profile(num_max, num_classes, ratio)
    logs = np.log(np.array(published) / published[0])
    places = np.linspace(0, len(published) - 1, num_classes)
    fall = np.interp(places, np.arange(len(published)), logs) * math.log(ratio) / -logs[-1]
    return _at_least_one([int(num_max * math.exp(value) + 1e-6) for value in fall.tolist()], ratio)


def shuffle_counts(counts: Sequence[int], seed: int) -> list[int]:
    """The same counts over classes in random order, so that a class's index says nothing about its frequency.

    >>> sorted(shuffle_counts([5, 3, 1], seed=0), reverse=True)
    [5, 3, 1]
    """
    return [counts[c] for c in np.random.default_rng(seed).permutation(len(counts))]


def subsample(labels: Any, counts: Sequence[int], seed: int) -> Tensor:
    """Indices of the samples a profile keeps: ``counts[c]`` samples of class c, chosen at random.

    Args:
        labels: [N] class indices.
        counts: samples to keep of each class.
        seed: chooses the samples. With one seed, what smaller counts keep is part of what larger counts keep.

    Returns:
        int64 indices in rising order.

    >>> labels = torch.tensor([0, 1, 0, 1, 0])
    >>> labels[subsample(labels, [3, 1], seed=0)].bincount().tolist()
    [3, 1]
    """
    array = np.asarray(labels)
    available = np.bincount(array, minlength=len(counts))
    if len(available) > len(counts):
        raise ValueError(f"subsample: labels must be in 0..{len(counts) - 1}. Got {len(available) - 1}.")
    kept = []
    for c, order in enumerate(_class_orders(array, len(counts), seed)):
        if not 0 <= counts[c] <= len(order):
            raise ValueError(f"subsample: class {c} has {len(order)} samples. Got a count of {counts[c]}.")
        kept.append(order[: counts[c]])
    return torch.from_numpy(np.sort(np.concatenate(kept)))


def stratified_holdout(labels: Any, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices to keep and indices to hold out, where every class gives the same share.

    A class with two samples or more has at least one on each side; the only sample of a class is kept.

    Args:
        labels: [N] class indices.
        fraction: share to hold out, in (0, 1).
        seed: chooses the samples.

    Returns:
        Two int64 vectors of indices in rising order.

    >>> kept, held = stratified_holdout([0] * 10 + [1] * 2 + [2], fraction=0.2, seed=0)
    >>> len(kept), len(held), 12 in kept
    (10, 3, True)
    """
    if not 0 < fraction < 1:
        raise ValueError(f"stratified_holdout: fraction must be in (0, 1). Got {fraction}.")
    array = np.asarray(labels)
    kept, held = [], []
    for order in _class_orders(array, int(array.max()) + 1, seed):
        size = min(max(round(fraction * len(order)), 1), max(len(order) - 1, 0))
        held.append(order[:size])
        kept.append(order[size:])
    return torch.from_numpy(np.sort(np.concatenate(kept))), torch.from_numpy(np.sort(np.concatenate(held)))


def _class_orders(labels: np.ndarray[Any, Any], num_classes: int, seed: int) -> list[np.ndarray[Any, Any]]:
    """The indices of each class in an order that depends on the seed, the class and its samples alone."""
    by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels, minlength=num_classes))[:-1])
    return [np.random.default_rng([seed, c]).permutation(members) for c, members in enumerate(by_class)]


def _check_profile(num_max: int, num_classes: int, ratio: float) -> None:
    if num_max < 1 or num_classes < 1:
        raise ValueError(f"num_max and num_classes must be at least 1. Got {num_max} and {num_classes}.")
    if not (math.isfinite(ratio) and ratio >= 1):
        raise ValueError(f"ratio must be a finite number of at least 1. Got {ratio}.")


def _at_least_one(counts: list[int], ratio: float) -> list[int]:
    if counts[-1] < 1:
        raise ValueError(
            f"ratio must be at most num_max = {counts[0]}, or the rarest class has no samples. Got {ratio}."
        )
    return counts


def _num_rows(values: Any) -> int:
    return int(values.shape[0]) if hasattr(values, "shape") else len(values)


def _take(values: Any, indices: Tensor) -> Any:
    """The rows of whatever holds rows."""
    if isinstance(values, Tensor):
        return values.index_select(0, indices.to(values.device))
    rows = indices.numpy()
    if hasattr(values, "iloc"):  # pandas
        return values.iloc[rows]
    if hasattr(values, "tocsr"):  # SciPy sparse, of which some kinds can't be indexed
        return values.tocsr()[rows]
    return values[rows] if hasattr(values, "shape") else [values[row] for row in rows.tolist()]
