"""Ranked labels, and which of them are true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from longtail._core.checks import as_tensor
from longtail._core.predictions import is_integer

__all__ = [
    "NO_LABEL",
    "Ranking",
    "Measure",
    "rank_labels",
    "places",
    "discounts",
    "best_gains",
    "mean_measure",
    "check_target",
]


NO_LABEL = -100
"""What fills up a row of ranked labels."""


class Ranking(NamedTuple):
    """The best k labels of each sample beside the true ones."""

    labels: Tensor
    """[N, k] labels, best first, -100 for none."""
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


def rank_labels(predictions: Tensor, target: Any, k: int) -> Ranking:
    """Take the best k labels of each sample, and look up which of them are true.

    Args:
        predictions: [N, C] floating-point scores, of which equal ones rank by label, smaller first; or [N, K] ranked
            labels, whole numbers, each at most once per row, filled up with -100.
        target: [N, C] zeros and ones, SciPy sparse or dense.
        k: how many, at most C and K.

    Returns:
        The ranking, on the device of ``predictions``.

    >>> ranking = rank_labels(torch.tensor([[0.1, 0.7, 0.2]]), torch.tensor([[1, 0, 1]]), k=2)
    >>> ranking.labels.tolist(), ranking.is_hit.tolist(), ranking.num_true.tolist()
    ([[1, 2]], [[False, True]], [2])
    """
    matrix = check_target(target)
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
        is_hit = (known[place] == wanted) & (labels != NO_LABEL)
    else:
        is_hit = torch.zeros_like(labels, dtype=torch.bool)
    return Ranking(labels, is_hit, counts, true_samples, true_labels, num_classes)


def places(ranking: Ranking) -> Tensor:
    return torch.arange(1, ranking.labels.shape[1] + 1, device=ranking.labels.device)


def discounts(ranking: Ranking) -> Tensor:
    return 1 / torch.log2(places(ranking).double() + 1)


def best_gains(ranking: Ranking) -> Tensor:
    """[N, k] the discounted gain of a list whose first labels are the true ones; 1 where there are none."""
    is_true = places(ranking) <= ranking.num_true.clamp_min(1)[:, None]
    return (is_true * discounts(ranking)).cumsum(dim=1)


def mean_measure(measure: Measure, predictions: Tensor, target: Any, k: int) -> Tensor:
    numerators, denominators = measure(rank_labels(predictions, target, k))
    return numerators.sum(dim=0) / denominators.sum(dim=0)


def check_target(target: Any) -> sparse.csr_array:
    """The target as CSR, rows sorted, with nothing in it but ones."""
    if isinstance(target, Tensor):
        target = target.detach().cpu().numpy()
    if len(getattr(target, "shape", ())) != 2:
        got = getattr(target, "shape", type(target).__name__)
        raise ValueError(f"target must be a matrix [N, C] of zeros and ones. Got {got}.")
    matrix = sparse.csr_array(target, copy=True)
    matrix.sum_duplicates()  # sorts each row as well
    matrix.eliminate_zeros()
    if matrix.dtype.kind not in "iufb" or not bool((matrix.data == 1).all()):
        raise ValueError("target must have no entries but 0 and 1. Got others.")
    return matrix


def _best_labels(predictions: Tensor, num_samples: int, num_classes: int, k: int) -> Tensor:
    """[N, k] int64, the first k of ranked labels, or the labels of the k largest scores."""
    predictions = as_tensor(predictions)  # scikit-learn's predictions are arrays
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
    if is_integer(predictions):
        return _check_labels(predictions[:, :k].long(), num_classes)
    if not predictions.is_floating_point() or predictions.shape[1] != num_classes:
        raise ValueError(
            f"scores must be floating-point [N, {num_classes}]. Got {predictions.dtype} {tuple(predictions.shape)}."
        )
    if num_samples and bool(predictions.amax(dim=1).isnan().any()):
        raise ValueError("scores must not be NaN. Got NaN; look for a diverged model.")
    return _top_labels(predictions, k)


def _top_labels(scores: Tensor, k: int) -> Tensor:
    """The labels of the k largest scores; equal ones by label. ``topk`` alone leaves their order open."""
    labels = scores.topk(k, dim=1).indices.sort(dim=1).values
    values, order = scores.gather(1, labels).sort(dim=1, descending=True, stable=True)
    labels = labels.gather(1, order)
    is_tied = (scores >= values[:, -1:]).sum(dim=1) > k  # which of the equal ones ``topk`` took is open as well
    if bool(is_tied.any()):
        labels[is_tied] = scores[is_tied].sort(dim=1, descending=True, stable=True).indices[:, :k]
    return labels


def _check_labels(labels: Tensor, num_classes: int) -> Tensor:
    if labels.numel():
        is_wrong = ((labels < 0) & (labels != NO_LABEL)) | (labels >= num_classes)
        if bool(is_wrong.any()):
            wrong = int(labels[is_wrong][0])
            raise ValueError(f"ranked labels must be in 0..{num_classes - 1}, or {NO_LABEL} for none. Got {wrong}.")
    ordered = labels.sort(dim=1).values
    is_twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != NO_LABEL)
    if bool(is_twice.any()):
        row = int(torch.nonzero(is_twice.any(dim=1))[0])
        raise ValueError(f"ranked labels must name a label at most once per row. Got one twice in row {row}.")
    return labels
