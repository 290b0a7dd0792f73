"""MPerClassSampler: batches with several samples of each of their classes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longtail._core.checks import at_least
from longtail.sampling.base import CHUNK_SIZE, ClassIndex, EpochSampler, count_off

__all__ = ["MPerClassSampler"]


class MPerClassSampler(EpochSampler):
    """Batches of equally many samples of each of some classes, so that every sample has partners of its class.

    Formula:
        a batch has m samples of each of K = batch_size / m different classes; classes come in shuffled rounds, so
        that p[c] = 1 / C

    Args:
        labels: what ``ClassPrior.from_labels`` takes. An index without samples, below the largest, is never drawn.
        num_per_class: m.
        batch_size: of one process, and of the ``DataLoader`` that gets this sampler; a multiple of m.
        num_samples: draws per epoch, over all processes, rounded up to whole batches; default: as many as there are
            labels.
        seed: see ``EpochSampler``.
        num_replicas: see ``EpochSampler``.
        rank: see ``EpochSampler``.

    A round has every class once; where its last batch would be short, classes from its beginning fill it up. The
    samples of a class are gone through in an order that is shuffled for each epoch, and from its beginning again. So
    a batch has a sample twice only if its class has fewer than m: then each of them comes equally often, up to one.

    Processes get whole batches in turn. A batch that was interrupted is drawn again after resuming.

    Use when:
        A loss compares samples of one class within a batch, as the pull of ELM, or a contrastive loss does.
    Avoid when:
        The loss looks at samples one by one: ``ClassBalancedSampler`` has more different classes in a batch.
    Special cases:
        ``ClassBalancedSampler`` at m = 1, up to classes and samples that come in rounds instead of independently.

    >>> labels = torch.tensor([0] * 90 + [1] * 8 + [2] * 2)
    >>> sampler = MPerClassSampler(labels, num_per_class=4, batch_size=8)
    >>> labels[list(sampler)[:8]].bincount(minlength=3).sort().values.tolist()
    [0, 4, 4]
    >>> sampler
    MPerClassSampler(num_per_class=4, batch_size=8, num_samples=104, seed=0, epoch=1, num_replicas=1, rank=0)

    Deviates:
        pytorch-metric-learning, whose sampler has this name, draws the classes of every batch independently, and the
        samples of a class that has fewer than m with replacement.

    Reference:
        Hermans et al. (2017), "In defense of the triplet loss for person re-identification", section 2, PK batches;
        Musgrave et al. (2020), "PyTorch metric learning".
    """

    shown = ("num_per_class", "batch_size")

    def __init__(
        self,
        labels: Any,
        num_per_class: int,
        batch_size: int,
        num_samples: int | None = None,
        *,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        self.num_per_class = at_least(num_per_class, 1, "num_per_class")
        self.batch_size = at_least(batch_size, 1, "batch_size")
        if self.batch_size % self.num_per_class:
            raise ValueError(
                f"MPerClassSampler: batch_size must be a multiple of num_per_class = {num_per_class}. "
                f"Got {batch_size}."
            )
        index = ClassIndex.of(labels)
        wanted = len(index.order) if num_samples is None else at_least(num_samples, 1, "num_samples")
        draws = _BatchDraws(
            index,
            torch.nonzero(index.counts).flatten(),
            self.num_per_class,
            self.num_classes_per_batch,
            math.ceil(wanted / self.batch_size),
        )
        if self.num_classes_per_batch > len(draws.present):
            raise ValueError(
                f"MPerClassSampler: batch_size must be at most {self.num_per_class} samples of each of the "
                f"{len(draws.present)} classes with samples. Got {batch_size}."
            )
        super().__init__(draws, seed=seed, num_replicas=num_replicas, rank=rank, share_size=self.batch_size)

    @property
    def num_classes_per_batch(self) -> int:
        """K, the classes of a batch."""
        return self.batch_size // self.num_per_class


@dataclass(frozen=True, eq=False)
class _BatchDraws:
    """Batches of classes from shuffled rounds, with the next samples of each class."""

    index: ClassIndex
    present: Tensor
    num_per_class: int
    num_classes_per_batch: int
    num_batches: int

    @property
    def num_samples(self) -> int:
        return self.num_batches * self.num_classes_per_batch * self.num_per_class

    def chunks(self, epoch: int, generator: torch.Generator) -> Iterator[Tensor]:
        samples = self.index.shuffle(generator)
        num_seen = torch.zeros_like(self.index.counts)
        within = torch.arange(self.num_per_class)
        for classes in self._classes(generator):
            first = count_off(classes, num_seen) * self.num_per_class
            place = (first[:, None] + within) % self.index.counts[classes, None]
            yield samples[self.index.starts[classes, None] + place].long().flatten()

    def _classes(self, generator: torch.Generator) -> Iterator[Tensor]:
        """The classes of all batches, some whole batches at a time."""
        size = self.num_classes_per_batch * max(1, CHUNK_SIZE // (self.num_classes_per_batch * self.num_per_class))
        remaining = self.num_batches * self.num_classes_per_batch
        rounds, num_waiting = [], 0
        while remaining:
            rounds.append(self._round(generator))
            num_waiting += len(rounds[-1])
            if num_waiting >= min(size, remaining):
                waiting = torch.cat(rounds)[:remaining]
                remaining -= len(waiting)
                yield from torch.split(waiting, size)
                rounds, num_waiting = [], 0

    def _round(self, generator: torch.Generator) -> Tensor:
        """Every class once, and the first ones again until batches are whole."""
        order = self.present[torch.randperm(len(self.present), generator=generator)]
        return torch.cat([order, order[: -len(order) % self.num_classes_per_batch]])
