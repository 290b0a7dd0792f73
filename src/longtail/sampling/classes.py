"""Samplers that draw a class, then one of its samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from longtail._core.checks import at_least
from longtail._core.random import AliasTable, check_probs, permutation
from longtail.prior import ClassPrior
from longtail.sampling.base import CHUNK_SIZE, ClassIndex, EpochSampler, in_chunks

__all__ = ["InstanceSampler", "ClassBalancedSampler", "SquareRootSampler", "ProgressiveSampler", "TargetSampler"]


class InstanceSampler(EpochSampler):
    """Instance-balanced: every sample once per epoch, in random order. Classes come as often as they are.

    Formula:
        p[c] = n[c] / N

    Args:
        labels: what ``ClassPrior.from_labels`` takes, or a 0/1 matrix [N, C]; only their number matters.
        seed: see ``EpochSampler``.
        num_replicas: see ``EpochSampler``.
        rank: see ``EpochSampler``.

    Use when:
        The loss or a post-hoc method corrects the imbalance; or as stage one of decoupled training.
    Avoid when:
        Rare classes must be seen in most batches.
    Special cases:
        ``RepeatFactorSampler`` at threshold = 0; ``ProgressiveSampler`` at epoch 0, but without replacement.

    >>> sorted(InstanceSampler([0, 0, 1]))
    [0, 1, 2]

    Reference:
        Kang et al. (2020), "Decoupling representation and classifier for long-tailed recognition", eq. (1), q = 1.
    """

    def __init__(
        self, labels: Any, *, seed: int = 0, num_replicas: int | None = None, rank: int | None = None
    ) -> None:
        is_matrix = getattr(labels, "ndim", 1) == 2
        num_samples = labels.shape[0] if is_matrix else ClassPrior.from_labels(labels).num_samples
        super().__init__(_ShuffledDraws(num_samples), seed=seed, num_replicas=num_replicas, rank=rank)


class _PowerSampler(EpochSampler):
    """Classes with samples in proportion to their size to the power of ``exponent``."""

    exponent: ClassVar[float]

    def __init__(
        self,
        labels: Any,
        num_samples: int | None = None,
        *,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        index = ClassIndex.of(labels)
        powers = torch.where(index.counts > 0, index.counts.double() ** self.exponent, 0.0)
        draws = _ClassDraws(index, powers, powers, epochs=1, num_samples=_num_draws(num_samples, index))
        super().__init__(draws, seed=seed, num_replicas=num_replicas, rank=rank)


class ClassBalancedSampler(_PowerSampler):
    """Class-balanced: every class with samples comes equally often; within it, samples are drawn uniformly.

    Formula:
        p[c] = 1 / C

    Args:
        labels: what ``ClassPrior.from_labels`` takes. An index without samples, below the largest, is never drawn.
        num_samples: draws per epoch, over all processes; default: as many as there are labels.
        seed: see ``EpochSampler``.
        num_replicas: see ``EpochSampler``.
        rank: see ``EpochSampler``.

    Use when:
        Stage two of decoupled training (the classifier alone is trained again).
    Avoid when:
        A whole large network is trained: it learns the few samples of rare classes by heart.
    Special cases:
        ``TargetSampler`` with equal probabilities. In expectation, the ``balanced`` class weights.

    >>> labels = torch.tensor([0] * 98 + [1] * 2)
    >>> drawn = labels[list(ClassBalancedSampler(labels, num_samples=1000))]
    >>> bool(450 < drawn.sum() < 550)
    True

    Deviates:
        Class-aware sampling (Shen et al.) walks through lists of classes and of their samples; here both are drawn
        independently, as in Kang et al.

    Reference:
        Shen et al. (2016), "Relay backpropagation for effective learning of deep convolutional neural networks";
        Kang et al. (2020), "Decoupling representation and classifier for long-tailed recognition", eq. (1), q = 0.
    """

    exponent = 0.0


class SquareRootSampler(_PowerSampler):
    """Classes come in proportion to the square root of their size: between instance- and class-balanced.

    Formula:
        p[c] = sqrt(n[c]) / sum_c' sqrt(n[c'])

    Args:
        labels: what ``ClassPrior.from_labels`` takes.
        num_samples: draws per epoch, over all processes; default: as many as there are labels.
        seed: see ``EpochSampler``.
        num_replicas: see ``EpochSampler``.
        rank: see ``EpochSampler``.

    Use when:
        Training in one stage, where class-balanced sampling overfits.
    Avoid when:
        The imbalance is extreme and balanced accuracy the aim: it corrects half of it.
    Special cases:
        ``TargetSampler`` with these probabilities. In expectation, the ``power`` class weights with exponent 0.5.

    >>> labels = torch.tensor([0] * 90 + [1] * 10)
    >>> drawn = labels[list(SquareRootSampler(labels, num_samples=1000))]
    >>> bool(200 < drawn.sum() < 300)
    True

    Reference:
        Kang et al. (2020), "Decoupling representation and classifier for long-tailed recognition", eq. (1), q = 1/2.
    """

    exponent = 0.5


class ProgressiveSampler(EpochSampler):
    """From instance-balanced to class-balanced, a step every epoch.

    Formula:
        p[c] = (1 - t / T) * n[c] / N + (t / T) / C, for epoch t = 0, 1, ... and T epochs; from T on, 1 / C

    Args:
        labels: what ``ClassPrior.from_labels`` takes. An index without samples, below the largest, is never drawn.
        epochs: T.
        num_samples: draws per epoch, over all processes; default: as many as there are labels.
        seed: see ``EpochSampler``.
        num_replicas: see ``EpochSampler``.
        rank: see ``EpochSampler``.

    Use when:
        Training in one stage, and the number of epochs is known.
    Avoid when:
        A margin or class weights correct the imbalance already: late epochs would correct it twice.
    Special cases:
        ``ClassBalancedSampler`` from epoch T on.

    >>> sampler = ProgressiveSampler([0] * 90 + [1] * 10, epochs=10)
    >>> sampler.set_epoch(10)
    >>> bool(30 < sum(index >= 90 for index in sampler) < 70)
    True

    Reference:
        Kang et al. (2020), "Decoupling representation and classifier for long-tailed recognition", eq. (2).
    """

    shown = ("epochs",)

    def __init__(
        self,
        labels: Any,
        epochs: int,
        num_samples: int | None = None,
        *,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        self.epochs = at_least(epochs, 1, "epochs")
        index = ClassIndex.of(labels)
        present = (index.counts > 0).double()
        draws = _ClassDraws(
            index,
            index.counts.double() / index.counts.sum(),
            present / present.sum(),
            epochs=self.epochs,
            num_samples=_num_draws(num_samples, index),
        )
        super().__init__(draws, seed=seed, num_replicas=num_replicas, rank=rank)


class TargetSampler(EpochSampler):
    """Classes come with the probabilities you give; within a class, samples are drawn uniformly.

    Formula:
        p[c] = class_probs[c] / sum_c' class_probs[c']

    Args:
        labels: what ``ClassPrior.from_labels`` takes.
        class_probs: [C] non-negative; a class with samples and probability 0 is never drawn, a class without samples
            must have 0.
        num_samples: draws per epoch, over all processes; default: as many as there are labels.
        seed: see ``EpochSampler``.
        num_replicas: see ``EpochSampler``.
        rank: see ``EpochSampler``.

    Use when:
        The label distribution that training should see is known, and is neither the data's nor balanced.
    Avoid when:
        A model is trained already: adjust its logits to the target prior instead.
    Special cases:
        ``ClassBalancedSampler`` for equal probabilities.

    >>> set(TargetSampler([0, 1, 1, 2], torch.tensor([0.0, 1.0, 0.0])))
    {1, 2}

    Reference:
        Ren et al., "Balanced Meta-Softmax", section 3.3: a sample is drawn by its class's rate.
    """

    def __init__(
        self,
        labels: Any,
        class_probs: Tensor,
        num_samples: int | None = None,
        *,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        probs = check_probs(class_probs).cpu()
        index = ClassIndex.of(labels, num_classes=len(probs))
        impossible = torch.nonzero((probs > 0) & (index.counts == 0)).flatten()
        if len(impossible):
            raise ValueError(
                f"TargetSampler: a class without samples must have probability 0. "
                f"Got {float(probs[impossible[0]]):g} for class {int(impossible[0])}."
            )
        draws = _ClassDraws(index, probs, probs, epochs=1, num_samples=_num_draws(num_samples, index))
        super().__init__(draws, seed=seed, num_replicas=num_replicas, rank=rank)


@dataclass(frozen=True, eq=False)
class _ClassDraws:
    """A class, then a sample of it. The classes' probabilities move from the first to the last in ``epochs``."""

    index: ClassIndex
    first_probs: Tensor
    last_probs: Tensor
    epochs: int
    num_samples: int

    def chunks(self, epoch: int, generator: torch.Generator) -> Iterator[Tensor]:
        progress = min(1.0, epoch / self.epochs)
        table = AliasTable(self.first_probs.lerp(self.last_probs, progress))
        for start in range(0, self.num_samples, CHUNK_SIZE):
            classes = table.draw([min(CHUNK_SIZE, self.num_samples - start)], generator)
            yield self.index.draw(classes, generator)


@dataclass(frozen=True, eq=False)
class _ShuffledDraws:
    """Every sample once."""

    num_samples: int

    def chunks(self, epoch: int, generator: torch.Generator) -> Iterator[Tensor]:
        return (part.long() for part in in_chunks(permutation(self.num_samples, generator)))


def _num_draws(num_samples: int | None, index: ClassIndex) -> int:
    return len(index.order) if num_samples is None else at_least(num_samples, 1, "num_samples")
