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
from longtail._core.random import index_dtype, permutation, uniform_draws
from longtail.prior import ClassPrior
from longtail.sampling.base import ClassIndex, EpochSampler, in_chunks, in_random_order

__all__ = ["RepeatFactorSampler", "UndersamplingSampler"]


class RepeatFactorSampler(EpochSampler):
    """Every sample at least once per epoch, and those of rare classes several times. Also for multi-label data.

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
        The data are multi-label (detection, tags), or no sample may be left out of an epoch.
    Avoid when:
        Classes are few: none is rarer than the threshold, and nothing is repeated.
    Special cases:
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

    shown = ("threshold",)

    def __init__(
        self,
        labels: Any,
        threshold: float = 0.001,
        *,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        if not (math.isfinite(threshold) and threshold >= 0):
            raise ValueError(f"RepeatFactorSampler: threshold must be a finite number >= 0. Got {threshold}.")
        super().__init__(_repeat_draws(labels, threshold), seed=seed, num_replicas=num_replicas, rank=rank)
        self.threshold = threshold


class UndersamplingSampler(EpochSampler):
    """At most ``per_class`` samples of each class per epoch, drawn afresh each time, without replacement.

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
    Special cases:
        ``InstanceSampler`` when ``per_class`` is at least the largest class.

    >>> labels = torch.tensor([0] * 98 + [1] * 2)
    >>> labels[list(UndersamplingSampler(labels, per_class=3))].bincount().tolist()
    [3, 2]

    Deviates:
        On multi-label data the PLM paper draws ``per_class`` samples of each class and drops duplicates, so that
        epochs differ in length. Here every sample belongs to one class: no duplicates, and labels with at most
        ``per_class`` samples still keep all of them.

    Reference:
        Liu et al. (2009), "Exploratory undersampling for class-imbalance learning", with one subset per epoch; Duarte
        et al., "PLM: Partial label masking", section 3.1, for multi-label data.
    """

    shown = ("per_class",)

    def __init__(
        self, labels: Any, per_class: int, *, seed: int = 0, num_replicas: int | None = None, rank: int | None = None
    ) -> None:
        self.per_class = at_least(per_class, 1, "per_class")
        index = ClassIndex.of(rarest_labels(labels) if getattr(labels, "ndim", 1) == 2 else labels)
        super().__init__(_CutClasses(index, self.per_class), seed=seed, num_replicas=num_replicas, rank=rank)


@dataclass(frozen=True, eq=False)
class _RepeatDraws:
    """Every sample as often as the factor of its kind says, rounded at random."""

    kinds: Tensor
    """[N] in the smaller integer type: there is one for every sample."""
    factors: Tensor
    """[kinds] float64."""
    num_samples: int

    def chunks(self, epoch: int, generator: torch.Generator) -> Iterator[Tensor]:
        order = permutation(len(self.kinds), generator)
        # Samples lie end to end on a line; each gets the whole numbers on its stretch, from a random origin.
        for _, ends in self._lay_out(order):
            length = ends[-1]
        scale, origin = self.num_samples / length, uniform_draws([1], generator)
        repeated = torch.empty(self.num_samples, dtype=order.dtype)
        num_laid, filled = 0, 0
        for samples, ends in self._lay_out(order):
            last_number = (ends * scale + origin).floor().long()
            num_laid += len(samples)
            if num_laid == len(order):
                last_number[-1] = self.num_samples
            copies = samples.repeat_interleave(last_number.diff(prepend=last_number.new_tensor([filled])))
            repeated[filled : filled + len(copies)] = copies
            filled += len(copies)
        return in_random_order(repeated, generator)

    def _lay_out(self, order: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Some samples at a time, and where the stretch of each ends, before scaling."""
        end = self.factors.new_zeros(1)
        for samples in in_chunks(order):
            ends = torch.cat([end, self.factors[self.kinds[samples]]]).cumsum(0)[1:]
            end = ends[-1:]
            yield samples, ends


@dataclass(frozen=True, eq=False)
class _CutClasses:
    """Up to ``per_class`` samples of each class."""

    index: ClassIndex
    per_class: int

    @property
    def num_samples(self) -> int:
        return int(self.index.counts.clamp_max(self.per_class).sum())

    def chunks(self, epoch: int, generator: torch.Generator) -> Iterator[Tensor]:
        return in_random_order(self.index.shuffle(generator, self.per_class), generator)


def _repeat_draws(labels: Any, threshold: float) -> _RepeatDraws:
    """Samples by what they are repeated for: their class, or the one with the largest factor of several."""
    if getattr(labels, "ndim", 1) != 2:
        kinds = torch.from_numpy(label_array(labels))
        factors = _class_factors(ClassPrior.from_labels(kinds), threshold)
    else:
        factors, classes = _class_factors(ClassPrior.from_indicator(labels), threshold).sort()
        factors = torch.cat([factors.new_ones(1), factors])  # kind 0 has no label
        kind_of = torch.empty_like(classes)
        kind_of[classes] = torch.arange(1, len(factors))
        rows, columns = positive_pairs(labels)
        kinds = torch.zeros(labels.shape[0], dtype=torch.int64).scatter_reduce(0, rows, kind_of[columns], "amax")
    # Rounded up: a common factor below 1 could drop a sample.
    num_samples = math.ceil(float(factors[kinds].sum()))
    return _RepeatDraws(kinds.to(index_dtype(len(factors))), factors, num_samples)


def _class_factors(prior: ClassPrior, threshold: float) -> Tensor:
    return (threshold / prior.rates).sqrt().clamp_min(1)
