"""Samples that are held out of training: choosing them class by class, and training on the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longtail._core.checks import as_tensor
from longtail.sampling.base import ClassIndex, EpochSampler, in_random_order

__all__ = ["SubsetSampler", "hold_out_counts", "hold_out_samples"]


def hold_out_counts(counts: Any, share: float) -> Tensor:
    """[C] how many samples of each class are held out: the nearest to its share, but at least one held out, one kept.

    Args:
        counts: [C] whole numbers. Of a class with one sample or none, nothing is held out.
        share: in [0, 1); 0 holds out nothing.

    >>> hold_out_counts([100, 10, 2, 1, 0], share=0.1).tolist()
    [10, 1, 1, 0, 0]
    """
    if not 0 <= share < 1:
        raise ValueError(f"meta_share must be at least 0 and below 1. Got {share}.")
    whole = as_tensor(counts).long()
    if share == 0:
        return torch.zeros_like(whole)
    wanted = (share * whole).round().long().clamp_min(1)
    return torch.minimum(wanted, whole - 1).clamp_min(0)


def hold_out_samples(
    labels: Any, share: float, num_classes: int | None = None, *, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Indices of samples to train on, and of others that are held out: a share of every class.

    Args:
        labels: what ``ClassPrior.from_labels`` takes.
        share: in [0, 1), of each class; see ``hold_out_counts``.
        num_classes: C; default: the largest label + 1.
        seed: chooses the samples.

    Returns:
        Two sorted int64 vectors.

    >>> kept, held_out = hold_out_samples([0, 0, 0, 0, 1, 1, 2], share=0.25)
    >>> len(kept), len(held_out), 6 in kept
    (5, 2, True)
    """
    index = ClassIndex.of(labels, num_classes)
    order = index.shuffle(torch.Generator().manual_seed(seed)).long()
    rank = torch.arange(len(order)) - index.starts.repeat_interleave(index.counts)
    is_held_out = rank < hold_out_counts(index.counts, share).repeat_interleave(index.counts)
    return order[~is_held_out].sort().values, order[is_held_out].sort().values


class SubsetSampler(EpochSampler):
    """Some samples of a data set, each once per epoch, in random order.

    Args:
        indices: [n] of the samples to draw.
        seed: see ``EpochSampler``.
        num_replicas: see ``EpochSampler``.
        rank: see ``EpochSampler``.

    Use when:
        Samples are held out, and the indices of the data set must stay what they are.
    Avoid when:
        Classes should come equally often: make a data set of these samples, and sample that.
    Special cases:
        ``InstanceSampler``, where the indices are all.

    >>> sorted(SubsetSampler([4, 1, 7]))
    [1, 4, 7]
    """

    def __init__(
        self, indices: Any, *, seed: int = 0, num_replicas: int | None = None, rank: int | None = None
    ) -> None:
        chosen = as_tensor(indices).long()
        if chosen.ndim != 1 or len(chosen) == 0:
            raise ValueError(
                f"SubsetSampler: indices must be a vector of at least one. Got shape {tuple(chosen.shape)}."
            )
        super().__init__(_SubsetDraws(chosen), seed=seed, num_replicas=num_replicas, rank=rank)


@dataclass(frozen=True, eq=False)
class _SubsetDraws:
    indices: Tensor

    @property
    def num_samples(self) -> int:
        return len(self.indices)

    def chunks(self, epoch: int, generator: torch.Generator) -> Iterator[Tensor]:
        return in_random_order(self.indices, generator)
