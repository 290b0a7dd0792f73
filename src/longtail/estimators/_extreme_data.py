"""The data of ExtremeClassifier: labels as sparse rows, and batches of samples with all their labels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from sklearn.utils.validation import check_array
from torch import Tensor

from longtail._core.labels import IntArray, indicator_rows
from longtail.estimators._extreme_network import Rows, as_rows, is_sparse
from longtail.prior import ClassPrior

__all__ = ["LabelBatch", "Samples", "count_labels", "mean_square", "precision_at_1", "read_labels", "split_samples"]


class LabelBatch(NamedTuple):
    """Samples of one step, with all their labels."""

    rows: Rows
    samples: Tensor
    """[P] which row of the batch a label belongs to."""
    labels: Tensor
    """[P] labels."""


class Samples(NamedTuple):
    """Features and labels of some samples, by their indices."""

    features: Any
    labels: Any
    """[N, C] CSR of bool."""
    chosen: IntArray

    def num_batches(self, size: int) -> int:
        """Steps per epoch."""
        return math.ceil(len(self.chosen) / size)

    def batches(self, size: int, generator: torch.Generator, device: str) -> Iterator[LabelBatch]:
        """The samples in random order, in batches of nearly one size, so that none is small."""
        order = self.chosen[torch.randperm(len(self.chosen), generator=generator).numpy()]
        for indices in np.array_split(order, self.num_batches(size)):
            labels = self.labels[indices]
            counts = torch.from_numpy(np.diff(labels.indptr).astype(np.int64))
            yield LabelBatch(
                as_rows(self.features[indices], device),
                torch.arange(len(indices)).repeat_interleave(counts).to(device),
                torch.from_numpy(labels.indices.astype(np.int64)).to(device),
            )


def read_labels(y: Any, num_samples: int, num_labels: int | None = None) -> Any:
    """[N, C] CSR of bool from what ``fit`` and ``score`` take; ``num_labels`` is that of training, once there was."""
    if not is_sparse(y) and np.ndim(y) == 1:
        labels = _one_hot(y, num_labels)
    else:
        labels = indicator_rows(y if is_sparse(y) else check_array(y, dtype=None, input_name="y"), "y")
    if labels.shape[0] != num_samples:
        raise ValueError(f"X and y must have one length. Got {num_samples} and {labels.shape[0]}.")
    if num_labels is None and (labels.shape[1] < 2 or labels.nnz == 0):
        raise ValueError(
            f"y must have two labels or more, and samples that have one. Got {labels.shape[1]} labels "
            f"and {labels.nnz} positives."
        )
    if num_labels is not None and labels.shape[1] != num_labels:
        raise ValueError(f"y must have the {num_labels} labels of training. Got {labels.shape[1]}.")
    return labels


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
    prior = ClassPrior.from_indicator(labels)
    return prior if bool((prior.counts > 0).all()) else prior.smoothed(1)


def precision_at_1(best: IntArray, labels: Any) -> float:
    """For which share of samples the first of their labels [N, k] is one of theirs; NaN without samples."""
    return float(labels[np.arange(len(best)), best[:, 0]].mean()) if len(best) else math.nan


def mean_square(features: Any) -> float:
    """Mean over samples of the squared length; 1 where all is 0."""
    total = float(np.square(features.data if is_sparse(features) else features, dtype=np.float64).sum())
    return total / features.shape[0] or 1.0


def _one_hot(y: Any, num_labels: int | None) -> Any:
    array = np.asarray(y)
    if array.dtype.kind not in "iu":
        raise ValueError(f"y must be zeros and ones [N, C], or whole numbers [N]. Got {array.dtype} [{len(array)}].")
    size = int(array.max(initial=0)) + 1 if num_labels is None else num_labels
    if array.size and not (array.min() >= 0 and array.max() < size):
        wanted = "at least 0" if num_labels is None else f"in 0..{size - 1}"
        raise ValueError(f"y must be {wanted}. Got {array.min() if array.min() < 0 else array.max()}.")
    ones = np.ones(len(array), dtype=np.bool_)
    return csr_array((ones, array, np.arange(len(array) + 1)), shape=(len(array), size))
