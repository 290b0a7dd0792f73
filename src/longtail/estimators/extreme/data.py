"""The data of ExtremeClassifier: labels as sparse rows, and batches of samples with all their labels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from longtail._core.labels import IntArray
from longtail.estimators.extreme.network import Rows, as_rows, is_sparse
from longtail.prior import ClassPrior

__all__ = [
    "LabelBatch",
    "Samples",
    "check_sample_weight",
    "count_labels",
    "make_batch",
    "mean_square",
    "precision_at_1",
    "smooth_if_empty",
    "split_rows",
    "split_samples",
]

ROWS_AT_ONCE = 1024
"""Samples to predict sets of labels for at a time."""


class LabelBatch(NamedTuple):
    """Samples of one step, with all their labels."""

    rows: Rows
    samples: Tensor
    """[P] which row of the batch a label belongs to."""
    labels: Tensor
    """[P] labels."""
    weights: Tensor | None = None
    """[N] how much each sample counts; None: all alike."""


class Samples(NamedTuple):
    """Features and labels of some samples, by their indices."""

    features: Any
    labels: Any
    """[N, C] CSR of bool."""
    chosen: IntArray
    sample_weight: npt.NDArray[np.float32] | None = None

    def num_batches(self, size: int) -> int:
        """Steps per epoch."""
        return math.ceil(len(self.chosen) / size)

    def batches(self, size: int, generator: torch.Generator, device: str) -> Iterator[LabelBatch]:
        """The samples in random order, in batches of nearly one size, so that none is small."""
        order = self.chosen[torch.randperm(len(self.chosen), generator=generator).numpy()]
        for indices in np.array_split(order, self.num_batches(size)):
            weights = None if self.sample_weight is None else self.sample_weight[indices]
            yield make_batch(self.features[indices], self.labels[indices], weights, device)


def make_batch(features: Any, labels: Any, sample_weight: npt.NDArray[np.float32] | None, device: str) -> LabelBatch:
    """Rows of features and CSR labels as a batch."""
    counts = torch.from_numpy(np.diff(labels.indptr).astype(np.int64))
    return LabelBatch(
        as_rows(features, device),
        torch.arange(len(counts)).repeat_interleave(counts).to(device),
        torch.from_numpy(labels.indices.astype(np.int64)).to(device),
        None if sample_weight is None else torch.from_numpy(sample_weight).to(device),
    )


def split_samples(labels: Any, share: float | None, generator: torch.Generator) -> tuple[IntArray, IntArray]:
    """Samples to train on and to hold out, of those that have labels; ``share`` None holds nothing out."""
    labeled = np.flatnonzero(np.diff(labels.indptr))
    if share is None:
        return labeled, labeled[:0]
    order = labeled[torch.randperm(len(labeled), generator=generator).numpy()]
    num_held_out = math.ceil(share * len(order))
    if num_held_out >= len(order):
        raise ValueError(
            f"n_iter_no_change needs samples to hold out and samples to train on. Got {len(order)} with labels, "
            f"and a validation_fraction of {share}."
        )
    return np.sort(order[num_held_out:]), order[:num_held_out]


def count_labels(labels: Any) -> ClassPrior:
    """The prior of the labels, smoothed by 1 if one of them has no samples."""
    return smooth_if_empty(ClassPrior.from_indicator(labels))


def smooth_if_empty(prior: ClassPrior) -> ClassPrior:
    """The prior, smoothed by 1 if a label has no samples."""
    return prior if bool((prior.counts > 0).all()) else prior.smoothed(1)


def precision_at_1(best: IntArray, labels: Any, sample_weight: npt.NDArray[np.float32] | None = None) -> float:
    """For which share of samples the first of their labels [N, k] is one of theirs; NaN without samples."""
    if not len(best):
        return math.nan
    return float(np.average(labels[np.arange(len(best)), best[:, 0]], weights=sample_weight))


def check_sample_weight(weights: Any, num_samples: int) -> npt.NDArray[np.float32] | None:
    """[N] float32 weights; None where none are given."""
    if weights is None:
        return None
    array = np.asarray(weights, dtype=np.float32)
    if array.shape != (num_samples,) or not (np.isfinite(array).all() and (array >= 0).all() and array.any()):
        raise ValueError(
            f"sample_weight must be {num_samples} finite numbers of at least 0, not all 0. Got {array.shape}."
        )
    return array


def split_rows(features: Any) -> Iterator[Any]:
    """Some rows at a time, for what needs memory for all labels of each."""
    for start in range(0, features.shape[0], ROWS_AT_ONCE):
        yield features[start : start + ROWS_AT_ONCE]


def mean_square(features: Any) -> float:
    """Mean over samples of the squared length; 1 where all is 0."""
    total = float(np.square(features.data if is_sparse(features) else features, dtype=np.float64).sum())
    return total / features.shape[0] or 1.0
