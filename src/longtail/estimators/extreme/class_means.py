"""What rare labels of ExtremeClassifier lean on after training: the mean of the hidden values of their samples."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from longtail.estimators.extreme.network import Network
from longtail.estimators.extreme.training import Source, TrainingSettings

__all__ = ["FEW_SAMPLES", "add_class_means"]

FEW_SAMPLES = 5.0
"""A label of so many samples leans on their mean half as much as one of hardly any."""

NEAR = 1e-3
"""What is nearer than this is the same but for rounding: a label's mean and that of all samples as a share of the
spread, and samples as a share of their length."""

SMALLEST = 1e-30
"""Keeps the spread of hidden values that are all 0 above 0."""


class _Sums(NamedTuple):
    """Of hidden values, in one pass over the samples; each sample counts as much as its weight."""

    labels: Tensor
    """[C, H] sums over the samples of each label."""
    counts: Tensor
    """[C] samples of each label."""
    mean: Tensor
    """[H] mean over all samples."""
    spread: float
    """Root of the mean squared distance from that."""


@torch.no_grad()
def add_class_means(network: Network, source: Source, weight: float, settings: TrainingSettings) -> None:
    """Lengthen the vector of a rare label toward the mean of the label's samples.

    Formula:
        f[y] <- f[y] + weight * a * 5 / (5 + n[y]) * <u[y], h - m>;
        m is the mean of h over all samples, u[y] the direction from m to the mean of the label's samples, and a the
        mean of <u[y], w[y]> over all pairs of a sample and a label y of it, at least 0

    Training moves the vector of a label of three samples toward them a few times, and away from others thousands of
    times. Their mean needs no training. How far logits are apart differs from data to data, so the weight is a share:
    of a, how long vectors have become in the direction of their labels' means, those of frequent labels most of all.
    The term is 0 in the mean over all samples: it tells near samples from far ones, and does not lift the label as
    such. It is linear in h, so vectors and biases take it up, and predicting costs nothing more.
    """
    sums = _sum_hidden_values(network, source, settings)
    differences = sums.labels - sums.counts[:, None] * sums.mean
    nearest = NEAR * sums.counts.clamp(min=1) * sums.spread  # a label that all samples have has no direction
    directions = differences / differences.norm(dim=1).maximum(nearest)[:, None]
    lengths = (directions * network.weight[:, :-1]).sum(dim=1)
    learned = lengths @ sums.counts / sums.counts.sum()
    strength = weight * learned.clamp(min=0) * FEW_SAMPLES / (FEW_SAMPLES + sums.counts)
    network.weight[:, :-1] += strength[:, None] * directions
    network.weight[:, -1] -= strength * (directions @ sums.mean)


def _sum_hidden_values(network: Network, source: Source, settings: TrainingSettings) -> _Sums:
    labels, total = torch.zeros_like(network.weight[:, :-1]), torch.zeros_like(network.offset)
    counts, square, number = labels.new_zeros(len(labels)), 0.0, 0.0
    for batch in source.batches(settings.batch_size, torch.Generator(), settings.device):
        hidden = network.embed(batch.rows)[:, :-1]
        weights = hidden.new_ones(len(hidden)) if batch.weights is None else batch.weights
        weighted = hidden * weights[:, None]
        labels.index_add_(0, batch.labels, weighted[batch.samples])
        counts.index_add_(0, batch.labels, weights[batch.samples])
        total += weighted.sum(dim=0)
        square += float((weighted * hidden).sum())
        number += float(weights.sum())
    mean = total / number
    variance = max(square / number - float(mean.square().sum()), NEAR**2 * square / number, SMALLEST)
    return _Sums(labels, counts, mean, variance**0.5)
