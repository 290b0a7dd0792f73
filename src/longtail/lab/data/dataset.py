"""The one shape that every source of data yields: a training and a test split of inputs and labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from longtail.lab.data.sparse import SparseRows
from longtail.prior import ClassPrior

__all__ = ["Dataset", "Rows", "Split"]


class Rows(Protocol):
    """Inputs of samples that are not one dense tensor."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> Tensor | SparseRows:
        """What a model gets for the samples at ``indices``."""

    def take(self, indices: Tensor) -> Rows:
        """The same kind of inputs with the samples at ``indices`` alone."""


@dataclass(frozen=True, eq=False, slots=True)
class Split:
    """Inputs and labels of the samples to train on, or of those to test on.

    >>> split = Split(torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 0]))
    >>> split.batch(torch.tensor([2, 0])).tolist()
    [[4.0, 5.0], [0.0, 1.0]]
    """

    inputs: Tensor | Rows
    """[N, ...] in memory, or rows that know how to make a batch: ``SparseRows``, ``ImageFiles``."""
    labels: Tensor
    """[N] int64 class indices, or [N, C] bool where a sample may have several labels."""

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise ValueError(
                f"Split: inputs and labels must have one length. Got {len(self.inputs)} and {len(self.labels)}."
            )
        kind = (self.labels.dtype, self.labels.ndim)
        if kind not in ((torch.int64, 1), (torch.bool, 2)):
            raise TypeError(
                "Split: labels must be int64 [N], or bool [N, C] for several labels a sample. "
                f"Got {self.labels.dtype} {tuple(self.labels.shape)}."
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.inputs.shape[1:]) if isinstance(self.inputs, Tensor) else self.inputs.input_shape

    def batch(self, indices: Tensor) -> Tensor | SparseRows:
        """Inputs of the samples at ``indices`` [n], ready for a model: a tensor, or ``SparseRows``."""
        if isinstance(self.inputs, Tensor):
            return self.inputs.index_select(0, indices)
        return self.inputs.batch(indices)

    def take(self, indices: Tensor) -> Split:
        """The split with the samples at ``indices`` [n] alone, in that order."""
        if isinstance(self.inputs, Tensor):
            return Split(self.inputs.index_select(0, indices), self.labels[indices])
        return Split(self.inputs.take(indices), self.labels[indices])


@dataclass(frozen=True, eq=False, slots=True)
class Dataset:
    """A named set of samples to train on and others to test on.

    >>> split = Split(torch.zeros(3, 2), torch.tensor([0, 1, 0]))
    >>> data = Dataset("example", train=split, test=split, class_names=("cat", "dog"))
    >>> data.num_classes, data.input_shape, data.prior.counts.tolist()
    (2, (2,), [2, 1])
    """

    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.train.input_shape != self.test.input_shape:
            raise ValueError(
                f"{self.name}: training and test inputs must have one shape. "
                f"Got {self.train.input_shape} and {self.test.input_shape}."
            )
        for part, split in (("training", self.train), ("test", self.test)):
            _check_labels(f"{self.name}: {part}", split.labels, self.num_classes)

    @property
    def num_classes(self) -> int:
        """C, the number of classes."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.train.input_shape

    @property
    def prior(self) -> ClassPrior:
        """The class counts of the training split."""
        labels = self.train.labels
        if labels.ndim == 2:
            return ClassPrior.from_indicator(labels)
        return ClassPrior.from_labels(labels, self.num_classes)


def _check_labels(where: str, labels: Tensor, num_classes: int) -> None:
    if len(labels) == 0:
        raise ValueError(f"{where} split must have samples. Got none.")
    if labels.ndim == 2:
        if labels.shape[1] != num_classes:
            raise ValueError(f"{where} labels must be [N, {num_classes}]. Got {tuple(labels.shape)}.")
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        wrong = low if low < 0 else high
        row = int(torch.nonzero(labels == wrong)[0])
        raise ValueError(f"{where} labels must be in 0..{num_classes - 1}. Got {wrong} in row {row}.")
