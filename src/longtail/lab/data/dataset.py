"""The one shape that every source of data yields: a training and a test split of inputs and labels."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from longtail._core.labels import NO_LABEL
from longtail.datasets import Profile, long_tailed_indices
from longtail.lab.data.item_sequences import ItemSequences
from longtail.lab.data.sparse_rows import SparseRows
from longtail.metrics.propensity import PROPENSITY_CONSTANTS
from longtail.prior import ClassPrior

__all__ = ["Dataset", "Inputs", "Rows", "Split", "indicator_of_pairs", "long_tailed", "sparse_indicator"]


Inputs = Tensor | SparseRows | ItemSequences
"""What a model gets for a batch."""

VERY_MANY_LABELS = 10_000
"""Multi-label data with as many are ranked: scores of all labels for all test samples would take gigabytes."""


class Rows(Protocol):
    """Inputs of samples that are not one dense tensor."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> Inputs:
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
    """[N, ...] in memory, or rows that make batches: ``SparseRows``, ``ItemSequences``, ``ImageFiles``."""
    labels: Tensor
    """[N] int64 class indices; or [N, L] int64 for sequences, a class for each place that a model is asked about,
    filled up with -100; or [N, C] bool for multi-label data, as an ordinary tensor or, for many labels, a sparse one
    (COO, coalesced)."""

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise ValueError(
                f"Split: inputs and labels must have one length. Got {len(self.inputs)} and {len(self.labels)}."
            )
        kind = (self.labels.dtype, self.labels.ndim)
        if kind not in ((torch.int64, 1), (torch.int64, 2), (torch.bool, 2)):
            raise TypeError(
                "Split: labels must be int64 [N], or [N, L] for sequences, or bool [N, C] for multi-label data. "
                f"Got {self.labels.dtype} {tuple(self.labels.shape)}."
            )
        if self.labels.is_sparse and not self.labels.is_coalesced():
            raise ValueError("Split: sparse labels must be coalesced. Call labels.coalesce() first.")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.inputs.shape[1:]) if isinstance(self.inputs, Tensor) else self.inputs.input_shape

    def batch(self, indices: Tensor) -> Inputs:
        """Inputs of the samples at ``indices`` [n], ready for a model: a tensor, or rows."""
        if isinstance(self.inputs, Tensor):
            return self.inputs.index_select(0, indices)
        return self.inputs.batch(indices)

    def targets(self, indices: Tensor) -> Tensor:
        """What a loss gets for the samples at ``indices`` [n]: class indices [n], or 0 and 1 in float32 [n, C].

        Of sequences it gets the class indices of all places, as a model makes an embedding for each of them.
        """
        labels = self._labels_at(indices).to_dense()
        if labels.ndim == 1:
            return labels
        return labels.float() if labels.dtype == torch.bool else labels[labels != NO_LABEL]

    def listed_targets(self, indices: Tensor) -> Tensor:
        """Class indices [n, L] of multi-label samples, filled up with -100: small however many labels there are.

        >>> labels = torch.tensor([[True, False, True], [False, True, False]])
        >>> Split(torch.zeros(2, 1), labels).listed_targets(torch.tensor([1, 0])).tolist()
        [[1, -100], [0, 2]]
        """
        samples, classes = _pairs_of(self._labels_at(indices))
        counts = torch.bincount(samples, minlength=len(indices))
        places = torch.arange(len(samples)) - (counts.cumsum(0) - counts)[samples]
        listed = torch.full((len(indices), max(1, int(counts.max()))), NO_LABEL)
        return listed.index_put_((samples, places), classes)

    def label_lists(self) -> tuple[Tensor, Tensor]:
        """Multi-label data as lists: [P] labels sample by sample, and [N + 1] where those of each sample begin.

        >>> labels = torch.tensor([[True, False, True], [False, True, False]])
        >>> Split(torch.zeros(2, 1), labels).label_lists()
        (tensor([0, 2, 1]), tensor([0, 2, 3]))
        """
        samples, labels = _pairs_of(self.labels)
        return labels, torch.searchsorted(samples, torch.arange(len(self) + 1))

    def take(self, indices: Tensor) -> Split:
        """The split with the samples at ``indices`` [n] alone, in that order."""
        if isinstance(self.inputs, Tensor):
            return Split(self.inputs.index_select(0, indices), self._labels_at(indices))
        return Split(self.inputs.take(indices), self._labels_at(indices))

    def _labels_at(self, indices: Tensor) -> Tensor:
        if not self.labels.is_sparse:
            return self.labels[indices]
        # Rows of a coalesced tensor are sorted, so a search finds them: many times faster than index_select.
        rows, columns = self.labels.indices()
        starts = torch.searchsorted(rows, indices)
        lengths = torch.searchsorted(rows, indices, right=True) - starts
        ends = lengths.cumsum(0)
        places = torch.arange(int(lengths.sum())) + (starts - ends + lengths).repeat_interleave(lengths)
        new_rows = torch.arange(len(indices)).repeat_interleave(lengths)
        return _coalesce_pairs(torch.stack([new_rows, columns[places]]), (len(indices), self.labels.shape[1]))


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
    propensity: tuple[float, float] = PROPENSITY_CONSTANTS["other"]
    """A and B of ``inverse_propensities``, by which rankings of multi-label data are scored."""

    def __post_init__(self) -> None:
        if self.train.input_shape != self.test.input_shape:
            raise ValueError(
                f"{self.name}: training and test inputs must have one shape. "
                f"Got {self.train.input_shape} and {self.test.input_shape}."
            )
        if self.train.labels.dtype != self.test.labels.dtype:
            raise ValueError(f"{self.name}: training and test samples must both have one label, or both several.")
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
    def is_multilabel(self) -> bool:
        """Whether the data are multi-label: a sample may have any number of labels, or none."""
        return self.train.labels.dtype == torch.bool

    @property
    def is_sequential(self) -> bool:
        """Whether samples are sequences with a label at each place, and what is tested is which comes next."""
        return self.train.labels.dtype == torch.int64 and self.train.labels.ndim == 2

    @property
    def is_ranked(self) -> bool:
        """Whether the best labels of test samples are kept and measured, in place of the scores of all."""
        return self.is_sequential or (self.is_multilabel and self.num_classes >= VERY_MANY_LABELS)

    @property
    def prior(self) -> ClassPrior:
        """The class counts of the training split.

        Smoothed by 1 for sequences, whose items may be new in the test, and where one of very many labels is empty.
        """
        if self.is_multilabel:
            prior = ClassPrior.from_indicator(self.train.labels)
            return prior.smoothed(1) if self.is_ranked and bool((prior.counts == 0).any()) else prior
        if self.is_sequential:
            labels = self.train.labels
            return ClassPrior.from_labels(labels[labels != NO_LABEL], self.num_classes).smoothed(1)
        return ClassPrior.from_labels(self.train.labels, self.num_classes)


def long_tailed(
    dataset: Dataset,
    *,
    ratio: float = 100.0,
    profile: Profile | None = None,
    num_max: int | None = None,
    shuffle_classes: bool = False,
    seed: int = 0,
) -> Dataset:
    """The data set with its training split cut to a profile; the test split stays as it is.

    Args:
        dataset: any data set with one label per sample.
        ratio: imbalance, >= 1: the largest class count over the smallest.
        profile: how counts fall from the first class to the last; default: ``exponential_counts``.
        num_max: samples to keep of the most frequent class; default: as many as the rarest class has.
        shuffle_classes: whether a class's place in the profile is drawn at random.
        seed: chooses the samples.
    """
    if dataset.train.labels.ndim != 1:
        raise ValueError(f"long_tailed: needs one label per sample. {dataset.name} has several.")
    missing = torch.nonzero(dataset.prior.counts == 0).flatten()
    if len(missing):
        name = dataset.class_names[int(missing[0])]
        raise ValueError(f"long_tailed: every class of {dataset.name} must have training samples. {name!r} has none.")
    kept = long_tailed_indices(
        dataset.train.labels,
        ratio=ratio,
        profile=profile,
        num_max=num_max,
        shuffle_classes=shuffle_classes,
        random_state=seed,
    )
    return dataclasses.replace(dataset, train=dataset.train.take(kept))


def sparse_indicator(matrix: Any) -> Tensor:
    """[N, C] sparse bool tensor of a SciPy sparse matrix of 0 and 1, as ``Split`` takes it.

    >>> from scipy.sparse import csr_array
    >>> sparse_indicator(csr_array([[0, 1], [1, 1]])).to_dense().tolist()
    [[False, True], [True, True]]
    """
    csr = matrix.tocsr(copy=True)
    csr.sum_duplicates()
    csr.eliminate_zeros()
    if not np.isin(csr.data, (0, 1)).all():
        raise ValueError("sparse_indicator: entries must be 0 or 1.")
    rows = np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))
    return _coalesce_pairs(torch.from_numpy(np.stack([rows, csr.indices]).astype(np.int64)), tuple(csr.shape))


def indicator_of_pairs(rows: Tensor, columns: Tensor, shape: tuple[int, int]) -> Tensor:
    """[N, C] sparse bool tensor that is True at the pairs (rows[i], columns[i]), in any order; one twice counts once.

    >>> indicator_of_pairs(torch.tensor([1, 1, 0]), torch.tensor([2, 2, 0]), (2, 3)).to_dense().int().tolist()
    [[1, 0, 0], [0, 0, 1]]
    """
    pairs = torch.unique(torch.stack([rows, columns]).long(), dim=1)  # sorted by row, then column
    return _coalesce_pairs(pairs, shape)


def _pairs_of(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns of the entries that are True, row by row."""
    rows, columns = labels.indices() if labels.is_sparse else torch.nonzero(labels).T
    return rows, columns


def _coalesce_pairs(pairs: Tensor, shape: tuple[int, int]) -> Tensor:
    """Of pairs [2, n] that are sorted, each once."""
    values = torch.ones(pairs.shape[1], dtype=torch.bool)
    return torch.sparse_coo_tensor(pairs, values, shape, is_coalesced=True, check_invariants=False)


def _check_labels(where: str, labels: Tensor, num_classes: int) -> None:
    if len(labels) == 0:
        raise ValueError(f"{where} split must have samples. Got none.")
    if labels.dtype == torch.bool:
        if labels.shape[1] != num_classes:
            raise ValueError(f"{where} labels must be [N, {num_classes}]. Got {tuple(labels.shape)}.")
        return
    known = labels if labels.ndim == 1 else labels[labels != NO_LABEL]
    low, high = int(known.min()), int(known.max())
    if low < 0 or high >= num_classes:
        wrong = low if low < 0 else high
        row = int(torch.nonzero(labels == wrong)[0, 0])
        raise ValueError(
            f"{where} labels must be in 0..{num_classes - 1}, the {num_classes} classes of the data. "
            f"Got {wrong} in row {row}."
        )
