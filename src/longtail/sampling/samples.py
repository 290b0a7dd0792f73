"""Samplers that repeat or leave out samples by how rare their labels are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longtail._core.checks import at_least
from longtail._core.labels import label_array, positive_pairs, rarest_labels
from longtail._core.random import uniform_draws
from longtail.prior import ClassPrior
from longtail.sampling.base import ClassIndex, EpochSampler, in_chunks

__all__ = ["RepeatFactorSampler", "UndersamplingSampler"]


def RepeatFactorSampler(
    labels: Any,
    threshold: float = 0.001,
    *,
    seed: int = 0,
    num_replicas: int | None = None,
    rank: int | None = None,
) -> EpochSampler:
    """Every sample at least once an epoch, and those of rare classes several times. Also for several labels a sample.

    Formula:
        r[c] = max(1, sqrt(threshold / f[c])), with f[c] the share of samples that have class c; a sample comes
        max r[c] times, over its classes, rounded up or down at random so that this is the expectation

    Args:
        labels: what ``ClassPrior.from_labels`` takes, or an [N, C] matrix of 0 and 1: NumPy, torch or SciPy sparse.
        threshold: frequency below which a class is repeated; 0.001 is the reference's choice for LVIS.
        seed: see ``EpochSampler``.
        num_replicas: see ``EpochSampler``.
        rank: see ``EpochSampler``.

    Use when:
        Samples have several labels (detection, tags), or no sample may be left out of an epoch.
    Avoid when:
        Classes are few: none is rarer than the threshold, and nothing is repeated.
    Equals:
        ``InstanceSampler`` at threshold = 0. Classes below the threshold come by the square root of their size.

    >>> sampler = RepeatFactorSampler([0] * 96 + [1] * 4, threshold=0.16)
    >>> len(sampler), sum(index >= 96 for index in sampler)
    (104, 8)

    Deviates:
        The reference rounds every sample's factor independently, so that epochs differ in length. Here they are
        rounded together (systematic sampling, in random order): each has the same expectation, up to a common factor
        of at most 1 + 1 / N, and all epochs have the same length.

    Reference:
        Gupta et al. (2019), "LVIS: a dataset for large vocabulary instance segmentation", repeat factor sampling.
    """
    if not (math.isfinite(threshold) and threshold >= 0):
        raise ValueError(f"RepeatFactorSampler: threshold must be a finite number >= 0. Got {threshold}.")
    draws = _Repeated(_repeat_factors(labels, threshold))
    return EpochSampler(draws, seed=seed, num_replicas=num_replicas, rank=rank)


def UndersamplingSampler(
    labels: Any, per_class: int, *, seed: int = 0, num_replicas: int | None = None, rank: int | None = None
) -> EpochSampler:
    """At most ``per_class`` samples of each class an epoch, drawn afresh every epoch, without replacement.

    Formula:
        class c comes min(n[c], per_class) times; a sample with several labels counts for the rarest of them

    Args:
        labels: what ``ClassPrior.from_labels`` takes, or an [N, C] matrix of 0 and 1: NumPy, torch or SciPy sparse.
            Samples without any label are a class of their own.
        per_class: the most samples of one class.
        seed: see ``EpochSampler``.
        num_replicas: see ``EpochSampler``.
        rank: see ``EpochSampler``.

    Use when:
        Frequent classes are redundant and training time counts; over the epochs all samples are seen.
    Avoid when:
        Epochs are few, so that much of the data would never be seen.
    Equals:
        ``InstanceSampler`` when ``per_class`` is at least the largest class.

    >>> labels = torch.tensor([0] * 98 + [1] * 2)
    >>> labels[list(UndersamplingSampler(labels, per_class=3))].bincount().tolist()
    [3, 2]

    Deviates:
        With several labels the PLM paper draws ``per_class`` samples of each class and drops duplicates, so that
        epochs differ in length. Here every sample belongs to one class: no duplicates, and labels with at most
        ``per_class`` samples still keep all of them.

    Reference:
        Liu et al. (2009), "Exploratory undersampling for class-imbalance learning", with one subset an epoch; Duarte
        et al., "PLM: Partial label masking", section 3.1, for several labels.
    """
    index = ClassIndex.of(rarest_labels(labels) if getattr(labels, "ndim", 1) == 2 else labels)
    return EpochSampler(
        _Undersampled(index, at_least(per_class, 1, "per_class")), seed=seed, num_replicas=num_replicas, rank=rank
    )


@dataclass(frozen=True, eq=False)
class _Repeated:
    """Every sample ``factors[i]`` times, rounded at random."""

    factors: Tensor

    @property
    def num_samples(self) -> int:
        # Rounded up: a common factor below 1 could drop a sample.
        return math.ceil(float(self.factors.sum()))

    def chunks(self, epoch: int, generator: torch.Generator) -> Iterator[Tensor]:
        order = torch.randperm(len(self.factors), generator=generator)
        ends = self.factors[order].cumsum(0)
        ends *= self.num_samples / ends[-1]
        # Samples lie end to end on a line; each gets the whole numbers on its stretch, from a random origin.
        last_number = (ends + uniform_draws([1], generator)).floor().long()
        last_number[-1] = self.num_samples
        copies = last_number.diff(prepend=last_number.new_zeros(1))
        repeated = order.repeat_interleave(copies)
        return in_chunks(repeated[torch.randperm(len(repeated), generator=generator)])


@dataclass(frozen=True, eq=False)
class _Undersampled:
    """Up to ``per_class`` samples of each class."""

    index: ClassIndex
    per_class: int

    @property
    def num_samples(self) -> int:
        return int(self.index.counts.clamp_max(self.per_class).sum())

    def chunks(self, epoch: int, generator: torch.Generator) -> Iterator[Tensor]:
        classes = torch.repeat_interleave(self.index.counts)
        shuffle = torch.randperm(len(classes), generator=generator)
        # A stable sort by class puts the samples of a class in random order; its first ones are the draw.
        shuffled = self.index.order[shuffle[classes[shuffle].argsort(stable=True)]]
        rank_in_class = torch.arange(len(classes)) - self.index.starts[classes]
        drawn = shuffled[rank_in_class < self.per_class]
        return in_chunks(drawn[torch.randperm(len(drawn), generator=generator)])


def _repeat_factors(labels: Any, threshold: float) -> Tensor:
    """[N] how often each sample should come: the largest factor of its classes, at least 1."""
    if getattr(labels, "ndim", 1) != 2:
        array = label_array(labels)
        return _class_factors(ClassPrior.from_labels(array), threshold)[torch.from_numpy(array)]
    factors = _class_factors(ClassPrior.from_indicator(labels), threshold)
    rows, columns = positive_pairs(labels)
    ones = torch.ones(labels.shape[0], dtype=torch.float64)
    return ones.scatter_reduce(0, rows, factors[columns], "amax")


def _class_factors(prior: ClassPrior, threshold: float) -> Tensor:
    return (threshold / prior.rates).sqrt().clamp_min(1)
