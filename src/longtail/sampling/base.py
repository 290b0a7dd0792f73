"""EpochSampler: indices for each epoch, the same in every process, resumable within an epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Sampler

from longtail._core.checks import at_least
from longtail._core.collectives import process_rank
from longtail._core.labels import label_array
from longtail._core.random import mix_seed, uniform_draws
from longtail.prior import ClassPrior

__all__ = ["Draws", "EpochSampler", "ClassIndex", "in_chunks"]


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

    It shares out the draws itself: with Lightning pass ``use_distributed_sampler=False``.

    >>> sampler = InstanceSampler([0, 0, 1, 1, 1], seed=1)
    >>> sorted(sampler), len(sampler), sampler.epoch
    ([0, 1, 2, 3, 4], 5, 1)
    """

    def __init__(
        self, draws: Draws, *, seed: int = 0, num_replicas: int | None = None, rank: int | None = None
    ) -> None:
        self.num_replicas, self.rank = process_rank(num_replicas, rank)
        self.draws = draws
        self.seed = at_least(seed, 0, "seed")
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
            self.epoch = at_least(epoch, 0, "epoch")
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
        self.seed = at_least(state["seed"], 0, "seed")
        self.set_epoch(state["epoch"])
        self._position = self._start = at_least(state["position"], 0, "position")

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
        generator = torch.Generator().manual_seed(mix_seed(self.seed, self.epoch))
        first = None
        for chunk in self.draws.chunks(self.epoch, generator):
            first = chunk if first is None else first
            yield chunk
        missing = -max(0, self.draws.num_samples - start) % self.num_replicas
        if first is not None and missing:
            yield first.repeat(math.ceil(missing / len(first)))[:missing]


@dataclass(frozen=True, eq=False)
class ClassIndex:
    """Samples sorted by class: class c has ``order[starts[c] : starts[c] + counts[c]]``."""

    order: Tensor
    starts: Tensor
    counts: Tensor

    @classmethod
    def of(cls, labels: Any, num_classes: int | None = None) -> ClassIndex:
        """Sort whatever holds labels."""
        array = label_array(labels)
        counts = ClassPrior.from_labels(array, num_classes).counts
        return cls(torch.from_numpy(array).argsort(stable=True), counts.cumsum(0) - counts, counts)

    def draw(self, classes: Tensor, generator: torch.Generator) -> Tensor:
        """A sample of each of these classes, uniformly and independently."""
        within = (uniform_draws(classes.shape, generator) * self.counts[classes]).long()
        return self.order[self.starts[classes] + within]


def in_chunks(indices: Tensor) -> Iterator[Tensor]:
    """The indices, ``CHUNK_SIZE`` at a time."""
    return (indices[start : start + CHUNK_SIZE] for start in range(0, len(indices), CHUNK_SIZE))
