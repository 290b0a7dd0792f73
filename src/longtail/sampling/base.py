"""EpochSampler: indices for each epoch, the same in every process, resumable within an epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.utils.data import Sampler

from longtail._core.checks import at_least
from longtail._core.collectives import process_rank
from longtail._core.labels import label_array
from longtail._core.random import index_dtype, mix_seed, permutation, uniform_draws
from longtail.prior import ClassPrior

__all__ = ["Draws", "EpochSampler", "ClassIndex", "count_off", "in_chunks", "in_random_order"]


CHUNK_SIZE = 65_536
"""Indices made at once: enough to be fast, too few to be felt in memory."""


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
        share_size: how many draws go to a process together, such as a batch that must stay whole. Then process r gets
            shares r, r + R ..., and a share that was not handed out to its end is handed out again after resuming.

    It shares out the draws itself: with Lightning pass ``use_distributed_sampler=False``.

    >>> sampler = InstanceSampler([0, 0, 1, 1, 1], seed=1)
    >>> sorted(sampler), len(sampler), sampler.epoch
    ([0, 1, 2, 3, 4], 5, 1)
    >>> sampler
    InstanceSampler(num_samples=5, seed=1, epoch=1, num_replicas=1, rank=0)
    """

    shown: ClassVar[tuple[str, ...]] = ()
    """Names of the settings that ``repr`` shows in front of those that all samplers have."""

    def __init__(
        self,
        draws: Draws,
        *,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
        share_size: int = 1,
    ) -> None:
        self.num_replicas, self.rank = process_rank(num_replicas, rank)
        self.draws = draws
        self.seed = at_least(seed, 0, "seed")
        self.share_size = at_least(share_size, 1, "share_size")
        self.epoch = 0
        self._position = 0
        self._start = 0

    @property
    def num_samples(self) -> int:
        """Indices of an epoch, over all processes."""
        return self.draws.num_samples

    def __len__(self) -> int:
        """Indices that this process gets in an epoch."""
        return math.ceil(self.num_samples / (self.num_replicas * self.share_size)) * self.share_size

    def __repr__(self) -> str:
        names = (*self.shown, "num_samples", "seed", "epoch", "num_replicas", "rank")
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    def __iter__(self) -> Iterator[int]:
        """The indices of this epoch, from the start or from where ``load_state_dict`` left it."""
        self._position = self._start
        epoch, num_given = self.epoch, 0
        for part in self._shard(self._position):
            for index in part.tolist():
                num_given += 1
                if num_given % self.share_size == 0:
                    self._position += self.num_replicas * self.share_size
                yield index
        if self.epoch == epoch:
            self.set_epoch(epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration draws."""
        if epoch != self.epoch:
            self.epoch = at_least(epoch, 0, "epoch")
            self._position = self._start = 0

    def state_dict(self) -> dict[str, int]:
        """Where this sampler is: seed, epoch, and the position in the epoch's draws of all processes together.

        The position counts what was handed out. A ``DataLoader`` with workers takes indices ahead of time: replace it
        there by the number of samples that training has used, over all processes.
        """
        return {"seed": self.seed, "epoch": self.epoch, "position": self._position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Resume from ``state``, with any number of processes: the next iteration gives what it still had to give."""
        wanted = {"seed", "epoch", "position"}
        if set(state) != wanted:
            raise ValueError(f"EpochSampler: the state must hold {sorted(wanted)}. Got {sorted(state)}.")
        self.seed = at_least(state["seed"], 0, "seed")
        self.set_epoch(state["epoch"])
        position = at_least(state["position"], 0, "position")
        if position % self.share_size:
            raise ValueError(
                f"{type(self).__name__}: the position must be a multiple of {self.share_size}, so that no batch is "
                f"cut. Got {position}."
            )
        self._position = self._start = position

    def _shard(self, start: int) -> Iterator[Tensor]:
        """This process's shares of the draws of this epoch from ``start`` on."""
        offset = 0
        for chunk in self._pad(start):
            place = torch.arange(offset - start, offset - start + len(chunk))
            is_own = place.div(self.share_size, rounding_mode="floor") % self.num_replicas == self.rank
            yield chunk[is_own & (place >= 0)]
            offset += len(chunk)

    def _pad(self, start: int) -> Iterator[Tensor]:
        """All draws of this epoch, and its first ones again until those from ``start`` on share out evenly."""
        generator = torch.Generator().manual_seed(mix_seed(self.seed, self.epoch))
        first = None
        for chunk in self.draws.chunks(self.epoch, generator):
            first = chunk if first is None else first
            yield chunk
        missing = -max(0, self.num_samples - start) % (self.num_replicas * self.share_size)
        if first is not None and missing:
            yield first.repeat(math.ceil(missing / len(first)))[:missing]


@dataclass(frozen=True, eq=False)
class ClassIndex:
    """Samples sorted by class: class c has ``order[starts[c] : starts[c] + counts[c]]``."""

    order: Tensor
    """[N] int32, or int64 for more than 2^31 samples: half the bytes of the labels."""
    starts: Tensor
    counts: Tensor

    @classmethod
    def of(cls, labels: Any, num_classes: int | None = None) -> ClassIndex:
        """Sort whatever holds labels."""
        array = torch.from_numpy(label_array(labels))
        counts = ClassPrior.from_labels(array, num_classes).counts
        starts = counts.cumsum(0) - counts
        order = torch.empty(len(array), dtype=index_dtype(len(array)))
        place = starts.clone()
        offset = 0
        for classes in in_chunks(array):
            order[count_off(classes, place)] = torch.arange(offset, offset + len(classes), dtype=order.dtype)
            offset += len(classes)
        return cls(order, starts, counts)

    def draw(self, classes: Tensor, generator: torch.Generator) -> Tensor:
        """A sample of each of these classes, uniformly and independently."""
        within = (uniform_draws(classes.shape, generator) * self.counts[classes]).long()
        return self.order[self.starts[classes] + within].long()

    def shuffle(self, generator: torch.Generator, most: int | None = None) -> Tensor:
        """The samples class by class, each class in random order and cut to its first ``most``."""
        counts = self.counts if most is None else self.counts.clamp_max(most)
        starts = counts.cumsum(0) - counts
        shuffled = torch.empty(int(counts.sum()), dtype=self.order.dtype)
        seen = torch.zeros_like(counts)
        for places in in_chunks(permutation(len(self.order), generator)):
            classes = torch.searchsorted(self.starts, places.long(), right=True) - 1
            rank = count_off(classes, seen)
            is_taken = rank < counts[classes]
            shuffled[(starts[classes] + rank)[is_taken]] = self.order[places[is_taken]]
        return shuffled


def count_off(classes: Tensor, seen: Tensor) -> Tensor:
    """The next number of each one's class, in order, from ``seen`` [C] on, which moves on to what comes after.

    >>> seen = torch.tensor([0, 10])
    >>> count_off(torch.tensor([1, 0, 1, 1]), seen).tolist(), seen.tolist()
    ([10, 0, 11, 12], [1, 13])
    """
    ordered, order = classes.sort(stable=True)
    first_of_class = torch.searchsorted(ordered, ordered)
    numbers = torch.empty_like(classes)
    numbers[order] = torch.arange(len(classes)) - first_of_class + seen[ordered]
    seen.index_add_(0, classes, torch.ones_like(classes))
    return numbers


def in_random_order(indices: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
    """The indices in random order, as int64, ``CHUNK_SIZE`` at a time."""
    for places in in_chunks(permutation(len(indices), generator)):
        yield indices[places].long()


def in_chunks(values: Tensor) -> Iterator[Tensor]:
    """The values, ``CHUNK_SIZE`` at a time."""
    return (values[start : start + CHUNK_SIZE] for start in range(0, len(values), CHUNK_SIZE))
