"""What ExtremeClassifier has beside its network where most features are rare: a linear machine for each label."""

from __future__ import annotations

import sys
import warnings
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC
from torch import nn

from longtail._core.labels import IntArray
from longtail.estimators.extreme.class_means import FEW_SAMPLES
from longtail.estimators.extreme.data import Samples, mean_square
from longtail.estimators.extreme.network import Network, compute_logits

__all__ = ["add_one_vs_rest"]

LOOKED_AT = 1000
"""Samples by which the spread of scores is measured."""


class _Machines(NamedTuple):
    """A score for each label: <x, vectors[:, y]> + offsets[y]."""

    vectors: npt.NDArray[np.float32]
    """[D, C]."""
    offsets: npt.NDArray[np.float32]
    """[C]."""
    counts: npt.NDArray[np.float64]
    """[C] samples of each label, each as often as its weight says."""


def add_one_vs_rest(network: Network, samples: Samples, weight: float, verbose: bool = False) -> None:
    """Train a support vector machine for each label against all samples without it, and average its scores in.

    Formula:
        f[y] <- (f[y] + weight * a * (1 + 5 / (5 + n[y])) * (s[y] + 1)) / (1 + weight);
        s the machines' scores, which are -1 or less for what surely lacks the label; n[y] the label's samples; a the
        spread of f over labels by that of s

    A network learns what a word means from all samples that have it, and of a word of three samples it learns little.
    A machine gives every word of a label's few samples a weight at once: it is weaker as a whole, but errs elsewhere.
    Scores are linear in the features, so the network takes them up as its direct path.
    """
    machines = _train_machines(samples, verbose)
    looked_at = samples.features[samples.chosen[:: max(1, len(samples.chosen) // LOOKED_AT)]]
    scores = looked_at @ machines.vectors + machines.offsets
    ratio = _spread(compute_logits(network, looked_at)) / max(_spread(scores), 1e-12)
    strength = weight * ratio * (1 + FEW_SAMPLES / (FEW_SAMPLES + machines.counts))
    with torch.no_grad():
        machines.vectors[:] *= strength
        _add_linear(network, machines.vectors, strength * (machines.offsets + 1), 1 / (1 + weight))


def _train_machines(samples: Samples, verbose: bool) -> _Machines:
    """One machine for each label that some samples have and others lack; the scores of the rest are -1."""
    chosen, weights = samples.chosen, np.ones(len(samples.chosen))
    if samples.sample_weight is not None:
        weights = samples.sample_weight[chosen].astype(np.float64)
        chosen, weights = chosen[weights > 0], weights[weights > 0]
    features, labels = samples.features[chosen], samples.labels[chosen].tocsc()
    length = mean_square(features) ** 0.5  # rows of about length 1 are what the machines' penalty is meant for
    rows = (features / length).astype(np.float64)
    num_labels = labels.shape[1]
    vectors = np.zeros((features.shape[1], num_labels), dtype=np.float32)
    offsets = np.full(num_labels, -1.0, dtype=np.float32)
    for label in range(num_labels):
        with_label: IntArray = labels.indices[labels.indptr[label] : labels.indptr[label + 1]]
        if 0 < len(with_label) < len(chosen):
            machine = _train_machine(rows, with_label, weights)
            vectors[:, label], offsets[label] = machine.coef_[0] / length, machine.intercept_[0]
        if verbose and (label % LABELS_BETWEEN_LINES == 0 or label + 1 == num_labels):
            sys.stderr.write(f"\rlinear machines: label {label + 1:,} of {num_labels:,}")
    if verbose:
        sys.stderr.write("\n")
    return _Machines(vectors, offsets, labels.T @ weights)


def _train_machine(rows: Any, with_label: IntArray, weights: npt.NDArray[np.float64]) -> LinearSVC:
    is_label = np.zeros(rows.shape[0], dtype=np.bool_)
    is_label[with_label] = True
    with warnings.catch_warnings():
        # One of thousands that has not fully converged ranks as well, and nobody could do anything about it.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LinearSVC(random_state=0, max_iter=MOST_PASSES).fit(rows, is_label, weights)


def _spread(scores: npt.NDArray[np.float32]) -> float:
    """Root of the mean squared distance of a sample's scores from their mean."""
    return float(np.sqrt(np.mean(np.square(scores - scores.mean(axis=1, keepdims=True)))))


def _add_linear(network: Network, vectors: Any, offsets: Any, share: float) -> None:
    """Make logits ``share`` times their sum with <x, vectors[:, y]> + offsets[y]; uses ``vectors`` up."""
    direct, constant = (
        torch.from_numpy(np.asarray(part, dtype=np.float32)).to(network.weight.device) for part in (vectors, offsets)
    )
    network.weight[:, -1] += constant
    network.weight.mul_(share)
    if network.direct is not None:
        direct += network.direct
    network.direct = nn.Parameter(direct.mul_(share))


LABELS_BETWEEN_LINES = 50


MOST_PASSES = 100
"""Passes of a machine over its samples; most need a few dozen."""
