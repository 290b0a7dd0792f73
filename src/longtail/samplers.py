"""Which samples an epoch shows, and how often: index samplers for a ``DataLoader``, over skewed labels.

There is one sampler, ``EpochSampler``: it knows seeds, epochs, processes and how to resume. A named sampler is a
composition, not a subclass: a function that says what an epoch draws. Most of them draw a class from an
``AliasTable`` and then a sample of that class uniformly, which is exact and O(1) a draw for any number of samples
(``torch.multinomial`` stops at 2^24 of them).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from longtail.prior import ClassPrior, _as_label_array

__all__ = [
    "AliasTable",
    "ClassBalancedSampler",
    "Draws",
    "EpochSampler",
    "InstanceSampler",
    "ProgressiveSampler",
    "RepeatFactorSampler",
    "SquareRootSampler",
    "TargetSampler",
    "UndersamplingSampler",
]

CHUNK_SIZE = 65_536
"""Indices made at once: enough to be fast, too few to be felt in memory."""


class AliasTable:
    """Draws categories with given probabilities, each draw in constant time.

    A category is a bucket of height 1 that holds a share of its own and is filled up by one other, its alias. A draw
    picks a bucket uniformly, and then one of the two.

    Args:
        probs: [C] non-negative, not all 0; normalized here. 0 is never drawn. The table and its draws live on the
            device of this tensor.

    Making it is O(C log C) without a Python loop: half a second for 10^7 categories. The probabilities that it
    implies are those given, up to rounding: within 1e-12 for some thousand categories, 1e-6 (relative) for 10^7.

    >>> table = AliasTable(torch.tensor([0.5, 0.0, 0.5]))
    >>> sorted(set(table.draw([100], torch.Generator().manual_seed(0)).tolist()))
    [0, 2]

    Reference:
        Walker (1977), "An efficient method for generating discrete random variables with general distributions";
        Vose (1991), "A linear algorithm for generating random numbers with a given distribution". Sums of surpluses
        and shortfalls instead of two stacks: Hübschle-Schneider and Sanders (2019), "Parallel weighted random
        sampling".
    """

    threshold: Tensor
    """[C] float64, the share of each bucket that belongs to its own category."""
    alias: Tensor
    """[C] int64, the category that has the rest of the bucket."""

    def __init__(self, probs: Tensor) -> None:
        self.threshold, self.alias = _buckets(_checked_probs(probs))

    def __len__(self) -> int:
        return len(self.threshold)

    def draw(self, shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
        """Independent categories, int64, of the given shape."""
        bucket = _uniform_below(len(self), shape, generator, self.threshold.device)
        is_own = _uniform(shape, generator, self.threshold.device) < self.threshold[bucket]
        return torch.where(is_own, bucket, self.alias[bucket])


class Draws(Protocol):
    """What an epoch draws. Write one to make a sampler of your own."""

    @property
    def num_samples(self) -> int:
        """How many indices an epoch has, the same in every epoch."""

    def chunks(self, epoch: int, generator: torch.Generator) -> Iterator[Tensor]:
        """The indices of an epoch in order, as int64 vectors. All randomness comes from ``generator``."""


class EpochSampler(Sampler[int]):
    """Dataset indices, epoch by epoch: reproducible, shared out to processes, and resumable.

    What is drawn is a function of ``seed`` and the epoch. After an epoch the next one follows by itself, so
    :meth:`set_epoch` is needed only to choose another. In a group of processes, process r gets draws r, r + R,
    r + 2R ...: taken in turn they are what one process would draw. All processes get equally many, for which up to
    R - 1 of the epoch's first draws come again at its end.

    Args:
        draws: what an epoch draws. The named samplers of this module fill it in.
        seed: the same in all processes.
        num_replicas: R, the number of processes. Give both this and ``rank``, or neither: then they are those of
            ``torch.distributed`` where it is initialized, or 1 and 0.
        rank: r, this process.

    It shares out the draws itself: with Lightning pass ``use_distributed_sampler=False``.

    >>> sampler = InstanceSampler([0, 0, 1, 1, 1], seed=1)
    >>> sorted(sampler), len(sampler), sampler.epoch
    ([0, 1, 2, 3, 4], 5, 1)
    """

    def __init__(
        self, draws: Draws, *, seed: int = 0, num_replicas: int | None = None, rank: int | None = None
    ) -> None:
        self.num_replicas, self.rank = _process(num_replicas, rank)
        self.draws = draws
        self.seed = _at_least(seed, 0, "seed")
        self.epoch = 0
        self._position = 0
        self._start = 0

    def __len__(self) -> int:
        """Indices that this process gets in an epoch."""
        return math.ceil(self.draws.num_samples / self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        """The indices of this epoch, from the start or from where ``load_state_dict`` left it."""
        self._position = self._start
        epoch = self.epoch
        for part in self._shard(self._position):
            for index in part.tolist():
                self._position += self.num_replicas
                yield index
        if self.epoch == epoch:
            self.set_epoch(epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration draws."""
        if epoch != self.epoch:
            self.epoch = _at_least(epoch, 0, "epoch")
            self._position = self._start = 0

    def state_dict(self) -> dict[str, int]:
        """Where this sampler is: seed, epoch, and the position in the epoch's draws of all processes together.

        The position counts what was handed out. A ``DataLoader`` with workers takes indices ahead of time: replace it
        there by the number of samples that training has used, over all processes.
        """
        return {"seed": self.seed, "epoch": self.epoch, "position": self._position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from ``state``, with any number of processes: the next iteration gives what it still had to give."""
        wanted = {"seed", "epoch", "position"}
        if set(state) != wanted:
            raise ValueError(f"EpochSampler: the state must hold {sorted(wanted)}. Got {sorted(state)}.")
        self.seed = _at_least(state["seed"], 0, "seed")
        self.set_epoch(state["epoch"])
        self._position = self._start = _at_least(state["position"], 0, "position")

    def _shard(self, start: int) -> Iterator[Tensor]:
        """The draws start + rank, start + rank + R ... of this epoch."""
        offset = 0
        for chunk in self._padded(start):
            ahead = start + self.rank - offset
            first = ahead if ahead >= 0 else ahead % self.num_replicas
            yield chunk[first :: self.num_replicas]
            offset += len(chunk)

    def _padded(self, start: int) -> Iterator[Tensor]:
        """All draws of this epoch, and its first ones again until those from ``start`` on share out evenly."""
        generator = torch.Generator().manual_seed(_mixed_seed(self.seed, self.epoch))
        first = None
        for chunk in self.draws.chunks(self.epoch, generator):
            first = chunk if first is None else first
            yield chunk
        missing = -max(0, self.draws.num_samples - start) % self.num_replicas
        if first is not None and missing:
            yield first.repeat(math.ceil(missing / len(first)))[:missing]


def InstanceSampler(
    labels: Any, *, seed: int = 0, num_replicas: int | None = None, rank: int | None = None
) -> EpochSampler:
    """Instance-balanced: every sample once an epoch, in random order. Classes come as often as they are.

    Formula:
        p[c] = n[c] / N

    Args:
        labels: what ``ClassPrior.from_labels`` takes, or a 0/1 matrix [N, C]; only their number matters.
        seed: see ``EpochSampler``.
        num_replicas: see ``EpochSampler``.
        rank: see ``EpochSampler``.

    Use when:
        The loss or a post-hoc method corrects the skew; or as stage one of decoupled training.
    Avoid when:
        Rare classes must be seen in most batches.
    Equals:
        ``RepeatFactorSampler`` at threshold = 0; ``ProgressiveSampler`` at epoch 0, but without replacement.

    >>> sorted(InstanceSampler([0, 0, 1]))
    [0, 1, 2]

    Reference:
        Kang et al. (2020), "Decoupling representation and classifier for long-tailed recognition", eq. (1), q = 1.
    """
    is_matrix = getattr(labels, "ndim", 1) == 2
    num_samples = labels.shape[0] if is_matrix else ClassPrior.from_labels(labels).num_samples
    return EpochSampler(_Shuffled(num_samples), seed=seed, num_replicas=num_replicas, rank=rank)


def ClassBalancedSampler(
    labels: Any,
    num_samples: int | None = None,
    *,
    seed: int = 0,
    num_replicas: int | None = None,
    rank: int | None = None,
) -> EpochSampler:
    """Class-balanced: every class with samples comes equally often; within it, samples are drawn uniformly.

    Formula:
        p[c] = 1 / C

    Args:
        labels: what ``ClassPrior.from_labels`` takes. An index without samples, below the largest, is never drawn.
        num_samples: draws an epoch, over all processes; default: as many as there are labels.
        seed: see ``EpochSampler``.
        num_replicas: see ``EpochSampler``.
        rank: see ``EpochSampler``.

    Use when:
        Stage two of decoupled training (the classifier alone is trained again).
    Avoid when:
        A whole large network is trained: it learns the few samples of rare classes by heart.
    Equals:
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
    return _power_sampler(labels, 0.0, num_samples, seed, num_replicas, rank)


def SquareRootSampler(
    labels: Any,
    num_samples: int | None = None,
    *,
    seed: int = 0,
    num_replicas: int | None = None,
    rank: int | None = None,
) -> EpochSampler:
    """Classes come in proportion to the square root of their size: between instance- and class-balanced.

    Formula:
        p[c] = sqrt(n[c]) / sum_c' sqrt(n[c'])

    Args:
        labels: what ``ClassPrior.from_labels`` takes.
        num_samples: draws an epoch, over all processes; default: as many as there are labels.
        seed: see ``EpochSampler``.
        num_replicas: see ``EpochSampler``.
        rank: see ``EpochSampler``.

    Use when:
        Training in one stage, where class-balanced sampling overfits.
    Avoid when:
        The skew is extreme and balanced accuracy the aim: it corrects half of it.
    Equals:
        ``TargetSampler`` with these probabilities. In expectation, the ``power`` class weights with exponent 0.5.

    >>> labels = torch.tensor([0] * 90 + [1] * 10)
    >>> drawn = labels[list(SquareRootSampler(labels, num_samples=1000))]
    >>> bool(200 < drawn.sum() < 300)
    True

    Reference:
        Kang et al. (2020), "Decoupling representation and classifier for long-tailed recognition", eq. (1), q = 1/2.
    """
    return _power_sampler(labels, 0.5, num_samples, seed, num_replicas, rank)


def ProgressiveSampler(
    labels: Any,
    num_epochs: int,
    num_samples: int | None = None,
    *,
    seed: int = 0,
    num_replicas: int | None = None,
    rank: int | None = None,
) -> EpochSampler:
    """From instance-balanced to class-balanced, a step every epoch.

    Formula:
        p[c] = (1 - t / T) * n[c] / N + (t / T) / C, for epoch t = 0, 1, ... and T epochs; from T on, 1 / C

    Args:
        labels: what ``ClassPrior.from_labels`` takes. An index without samples, below the largest, is never drawn.
        num_epochs: T.
        num_samples: draws an epoch, over all processes; default: as many as there are labels.
        seed: see ``EpochSampler``.
        num_replicas: see ``EpochSampler``.
        rank: see ``EpochSampler``.

    Use when:
        Training in one stage, and the number of epochs is known.
    Avoid when:
        A margin or class weights correct the skew already: late epochs would correct it twice.
    Equals:
        ``ClassBalancedSampler`` from epoch T on.

    >>> sampler = ProgressiveSampler([0] * 90 + [1] * 10, num_epochs=10)
    >>> sampler.set_epoch(10)
    >>> bool(30 < sum(index >= 90 for index in sampler) < 70)
    True

    Reference:
        Kang et al. (2020), "Decoupling representation and classifier for long-tailed recognition", eq. (2).
    """
    index = _ClassIndex.of(labels)
    present = (index.counts > 0).double()
    draws = _ClassDraws(
        index,
        index.counts.double() / index.counts.sum(),
        present / present.sum(),
        num_epochs=_at_least(num_epochs, 1, "num_epochs"),
        num_samples=_num_draws(num_samples, index),
    )
    return EpochSampler(draws, seed=seed, num_replicas=num_replicas, rank=rank)


def TargetSampler(
    labels: Any,
    class_probs: Tensor,
    num_samples: int | None = None,
    *,
    seed: int = 0,
    num_replicas: int | None = None,
    rank: int | None = None,
) -> EpochSampler:
    """Classes come with the probabilities you give; within a class, samples are drawn uniformly.

    Formula:
        p[c] = class_probs[c] / sum_c' class_probs[c']

    Args:
        labels: what ``ClassPrior.from_labels`` takes.
        class_probs: [C] non-negative; a class with samples and probability 0 is never drawn, a class without samples
            must have 0.
        num_samples: draws an epoch, over all processes; default: as many as there are labels.
        seed: see ``EpochSampler``.
        num_replicas: see ``EpochSampler``.
        rank: see ``EpochSampler``.

    Use when:
        The label distribution that training should see is known, and is neither the data's nor balanced.
    Avoid when:
        A model is trained already: adjust its logits to the target prior instead.
    Equals:
        ``ClassBalancedSampler`` for equal probabilities.

    >>> set(TargetSampler([0, 1, 1, 2], torch.tensor([0.0, 1.0, 0.0])))
    {1, 2}

    Reference:
        Ren et al., "Balanced Meta-Softmax", section 3.3: a sample is drawn by its class's rate.
    """
    probs = _checked_probs(class_probs).cpu()
    index = _ClassIndex.of(labels, num_classes=len(probs))
    impossible = torch.nonzero((probs > 0) & (index.counts == 0)).flatten()
    if len(impossible):
        raise ValueError(
            f"TargetSampler: a class without samples must have probability 0. "
            f"Got {float(probs[impossible[0]]):g} for class {int(impossible[0])}."
        )
    draws = _ClassDraws(index, probs, probs, num_epochs=1, num_samples=_num_draws(num_samples, index))
    return EpochSampler(draws, seed=seed, num_replicas=num_replicas, rank=rank)


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
    index = _ClassIndex.of(_rarest_labels(labels) if getattr(labels, "ndim", 1) == 2 else labels)
    return EpochSampler(
        _Undersampled(index, _at_least(per_class, 1, "per_class")), seed=seed, num_replicas=num_replicas, rank=rank
    )


@dataclass(frozen=True, eq=False)
class _ClassIndex:
    """Samples sorted by class: class c has ``order[starts[c] : starts[c] + counts[c]]``."""

    order: Tensor
    starts: Tensor
    counts: Tensor

    @classmethod
    def of(cls, labels: Any, num_classes: int | None = None) -> _ClassIndex:
        array = _as_label_array(labels)
        counts = ClassPrior.from_labels(array, num_classes).counts
        return cls(torch.from_numpy(array).argsort(stable=True), counts.cumsum(0) - counts, counts)

    def draw(self, classes: Tensor, generator: torch.Generator) -> Tensor:
        """A sample of each of these classes, uniformly and independently."""
        within = (_uniform(classes.shape, generator) * self.counts[classes]).long()
        return self.order[self.starts[classes] + within]


@dataclass(frozen=True, eq=False)
class _ClassDraws:
    """A class, then a sample of it. The classes' probabilities move from the first to the last in ``num_epochs``."""

    index: _ClassIndex
    first_probs: Tensor
    last_probs: Tensor
    num_epochs: int
    num_samples: int

    def chunks(self, epoch: int, generator: torch.Generator) -> Iterator[Tensor]:
        progress = min(1.0, epoch / self.num_epochs)
        table = AliasTable(self.first_probs.lerp(self.last_probs, progress))
        for start in range(0, self.num_samples, CHUNK_SIZE):
            classes = table.draw([min(CHUNK_SIZE, self.num_samples - start)], generator)
            yield self.index.draw(classes, generator)


@dataclass(frozen=True, eq=False)
class _Shuffled:
    num_samples: int

    def chunks(self, epoch: int, generator: torch.Generator) -> Iterator[Tensor]:
        return _in_chunks(torch.randperm(self.num_samples, generator=generator))


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
        last_number = (ends + _uniform([1], generator)).floor().long()
        last_number[-1] = self.num_samples
        copies = last_number.diff(prepend=last_number.new_zeros(1))
        repeated = order.repeat_interleave(copies)
        return _in_chunks(repeated[torch.randperm(len(repeated), generator=generator)])


@dataclass(frozen=True, eq=False)
class _Undersampled:
    """Up to ``per_class`` samples of each class."""

    index: _ClassIndex
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
        return _in_chunks(drawn[torch.randperm(len(drawn), generator=generator)])


def _power_sampler(
    labels: Any, exponent: float, num_samples: int | None, seed: int, num_replicas: int | None, rank: int | None
) -> EpochSampler:
    """Classes with samples in proportion to their size to the power of ``exponent``."""
    index = _ClassIndex.of(labels)
    powers = torch.where(index.counts > 0, index.counts.double() ** exponent, 0.0)
    draws = _ClassDraws(index, powers, powers, num_epochs=1, num_samples=_num_draws(num_samples, index))
    return EpochSampler(draws, seed=seed, num_replicas=num_replicas, rank=rank)


def _repeat_factors(labels: Any, threshold: float) -> Tensor:
    """[N] how often each sample should come: the largest factor of its classes, at least 1."""
    if getattr(labels, "ndim", 1) != 2:
        array = _as_label_array(labels)
        return _class_factors(ClassPrior.from_labels(array), threshold)[torch.from_numpy(array)]
    factors = _class_factors(ClassPrior.from_indicator(labels), threshold)
    rows, columns = _positives(labels)
    ones = torch.ones(labels.shape[0], dtype=torch.float64)
    return ones.scatter_reduce(0, rows, factors[columns], "amax")


def _class_factors(prior: ClassPrior, threshold: float) -> Tensor:
    return (threshold / prior.rates).sqrt().clamp_min(1)


def _rarest_labels(indicator: Any) -> Tensor:
    """[N] the least frequent label of each sample; C for a sample without labels."""
    num_classes = indicator.shape[1]
    by_rarity = ClassPrior.from_indicator(indicator).rarest(num_classes)
    rarity = torch.empty_like(by_rarity)
    rarity[by_rarity] = torch.arange(num_classes)
    rows, columns = _positives(indicator)
    nothing = torch.full((indicator.shape[0],), num_classes)
    rarest = nothing.scatter_reduce(0, rows, rarity[columns], "amin")
    return torch.cat([by_rarity, by_rarity.new_tensor([num_classes])])[rarest]


def _positives(indicator: Any) -> tuple[Tensor, Tensor]:
    """Rows and columns of the entries of a 0/1 matrix that are 1."""
    if hasattr(indicator, "tocoo"):  # SciPy sparse
        matrix = indicator.tocoo()
        entries, values = np.stack([matrix.row, matrix.col]), torch.from_numpy(matrix.data)
        indices = torch.from_numpy(entries).long()
    else:
        sparse = torch.as_tensor(indicator).detach().cpu().to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
        indices, values = sparse.indices(), sparse.values()
    rows, columns = indices[:, values != 0]
    return rows, columns


def _buckets(probs: Tensor) -> tuple[Tensor, Tensor]:
    """Threshold and alias of each bucket.

    At a mean height of 1, large categories have a surplus and small ones a shortfall. In order, a large one fills up
    small ones until it is below 1 itself; then the next large one fills it up and goes on. So who fills whom, and
    what is left of a large one, follows from the running sums of surpluses and shortfalls.
    """
    height = probs * (len(probs) / probs.sum())
    is_large = height >= 1
    is_large[height.argmax()] = True  # rounding may leave none
    large, small = torch.nonzero(is_large).flatten(), torch.nonzero(~is_large).flatten()
    surplus = (height[large] - 1).cumsum(0)
    shortfall = torch.cat([height.new_zeros(1), (1 - height[small]).cumsum(0)])

    threshold, alias = height.clone(), torch.arange(len(height), device=height.device)
    filled_by = torch.searchsorted(surplus, shortfall[:-1], right=True)
    alias[small] = large[filled_by.clamp_max(len(large) - 1)]
    emptied_at = torch.searchsorted(shortfall, surplus).clamp_max(len(small))
    threshold[large] = (1 + surplus - shortfall[emptied_at]).clamp(0, 1)
    alias[large[:-1]] = large[1:]
    threshold[large[-1]] = 1.0  # nobody is left to fill it; what it lacks is rounding
    return threshold, alias


def _in_chunks(indices: Tensor) -> Iterator[Tensor]:
    return (indices[start : start + CHUNK_SIZE] for start in range(0, len(indices), CHUNK_SIZE))


def _uniform(shape: Sequence[int], generator: torch.Generator | None, device: torch.device | None = None) -> Tensor:
    return torch.rand(shape, dtype=torch.float64, generator=generator, device=device)


def _uniform_below(
    size: int, shape: Sequence[int], generator: torch.Generator | None, device: torch.device | None = None
) -> Tensor:
    """Integers in 0..size - 1 from 53 random bits. ``torch.randint`` takes 32, which favors some of many integers."""
    return (_uniform(shape, generator, device) * size).long()


def _mixed_seed(seed: int, epoch: int) -> int:
    """One seed of 32 bits, all that torch uses on CPUs. Unlike a sum, (0, 1) and (1, 0) differ."""
    return int(np.random.SeedSequence((seed, epoch)).generate_state(1)[0])


def _num_draws(num_samples: int | None, index: _ClassIndex) -> int:
    return len(index.order) if num_samples is None else _at_least(num_samples, 1, "num_samples")


def _process(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    distributed = torch.distributed
    if num_replicas is None and rank is None:
        is_group = distributed.is_available() and distributed.is_initialized()
        return (distributed.get_world_size(), distributed.get_rank()) if is_group else (1, 0)
    if num_replicas is None or rank is None or not 0 <= rank < num_replicas:
        raise ValueError(
            "EpochSampler: rank must be in 0..num_replicas - 1, and both be given or neither. "
            f"Got {rank=}, {num_replicas=}."
        )
    return num_replicas, rank


def _checked_probs(probs: Tensor) -> Tensor:
    if probs.ndim != 1 or len(probs) == 0:
        raise ValueError(
            f"probabilities must be a vector with one number a category. Got shape {tuple(probs.shape)}."
        )
    wide = probs.detach().double()
    if not (wide.isfinite().all() and (wide >= 0).all()):
        bad = torch.nonzero(~(wide.isfinite() & (wide >= 0))).flatten()[0]
        raise ValueError(f"probabilities must be finite and at least 0. Got {float(wide[bad])} for {int(bad)}.")
    if not wide.any():
        raise ValueError("probabilities must not all be 0. Got only 0.")
    return wide


def _at_least(value: int, least: int, name: str) -> int:
    try:
        whole = operator.index(value)
    except TypeError:
        whole = least - 1
    if whole < least:
        raise ValueError(f"{name} must be a whole number of at least {least}. Got {value!r}.")
    return whole
