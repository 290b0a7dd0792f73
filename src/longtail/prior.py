"""How often each class occurs: the one thing every method of this library starts from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from longtail._core.labels import IntArray, column_sums, label_array, to_numpy
from longtail._core.memory import check_memory

__all__ = ["ClassPrior"]

FEWEST_GROUPED = 6
"""Fewer classes are shown by name: groups of one or two classes say less than the classes do."""
MANY_CLASSES = 10**7
"""More, by the largest label alone, are looked at before memory is taken for their counts."""
MOST_NAMED = 10
"""More classes keep their group, even if it is the only one."""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class ClassPrior:
    """How many training samples each class has, and what follows from it. Immutable.

    Make one with :meth:`from_labels`, :meth:`from_counts` or :meth:`from_indicator`. Shards merge with ``+``
    (or :meth:`all_reduce` across processes). A class without samples is allowed, but whatever needs
    ``log pi`` raises until you decide what such a class means, for example with :meth:`smoothed`.

    >>> prior = ClassPrior.from_labels([0, 0, 0, 1])
    >>> prior.counts.tolist(), prior.probs.tolist(), prior.imbalance
    ([3, 1], [0.75, 0.25], 3.0)
    """

    _counts: IntArray
    num_samples: int
    """Samples seen. For multi-label data this is less than the sum of the counts."""
    pseudocount: float = 0.0
    """What :meth:`smoothed` added to every count before taking probabilities."""

    @classmethod
    def from_labels(cls, labels: Any, num_classes: int | None = None) -> ClassPrior:
        """Count integer labels.

        Args:
            labels: a list, NumPy array, tensor or pandas series of class indices; a ``Dataset`` with
                ``targets``, ``labels`` or ``tensors`` (the last one), or a ``Subset`` or ``ConcatDataset`` of
                such; or, as a last resort, an iterable of ``(x, y)`` pairs, which is read once.
            num_classes: how many classes there are; default: the largest label + 1.

        >>> ClassPrior.from_labels([2, 0, 2], num_classes=4).counts.tolist()
        [1, 0, 2, 0]
        """
        array = label_array(labels)
        return cls(_count(array, num_classes), num_samples=len(array))

    @classmethod
    def from_counts(cls, counts: Any) -> ClassPrior:
        """Take the number of samples of each class as given.

        Args:
            counts: [C] whole numbers, none negative, not all 0, in the order of the classes. A pandas series that is
                sorted by frequency, as ``value_counts`` gives it, is refused: its order is another one.

        >>> ClassPrior.from_counts([5000, 500, 50]).imbalance
        100.0
        """
        _check_order(counts)
        array = np.asarray(to_numpy(counts))
        if array.ndim != 1 or array.size == 0:
            raise ValueError(
                f"ClassPrior: counts must be a vector with one number per class. Got shape {array.shape}."
            )
        if array.dtype.kind not in "iuf":
            raise TypeError(f"ClassPrior: counts must be whole numbers. Got {array.dtype}.")
        bad = np.flatnonzero(~np.isfinite(array) | (array < 0) | (array != np.floor(array)))
        if bad.size:
            raise ValueError(
                f"ClassPrior: counts must be whole numbers of at least 0. Got {array[bad[0]]} for class {bad[0]}."
            )
        inexact = np.flatnonzero((array.dtype.kind == "f") & (array.astype(np.float64) > 2**53))
        if inexact.size:
            raise ValueError(
                "ClassPrior: counts given as floats must be at most 2^53, up to where they are exact. "
                f"Got {array[inexact[0]]} for class {inexact[0]}; give integers."
            )
        _check_total(float(array.sum(dtype=np.float64)))
        whole = array.astype(np.int64)
        return cls(whole, num_samples=int(whole.sum()))

    @classmethod
    def from_indicator(cls, indicator: Any) -> ClassPrior:
        """Count the positives of each label of multi-label data: a sample may have any number of labels, or none.

        Args:
            indicator: [N, C] of 0 and 1: NumPy, torch (dense or sparse) or SciPy sparse.

        >>> prior = ClassPrior.from_indicator([[1, 1, 0], [1, 0, 0]])
        >>> prior.counts.tolist(), prior.num_samples, prior.rates.tolist()
        ([2, 1, 0], 2, [1.0, 0.5, 0.0])
        """
        counts, num_samples = column_sums(indicator)
        return cls(counts, num_samples=num_samples)

    def __post_init__(self) -> None:
        if self.num_samples == 0 or not self._counts.any():
            raise ValueError("ClassPrior: there must be at least one labeled sample. Got none.")
        _check_total(self.num_samples)
        self._counts.setflags(write=False)

    @property
    def counts(self) -> Tensor:
        """[C] int64, the samples seen of each class (never smoothed)."""
        return torch.from_numpy(self._counts.copy())

    @property
    def num_classes(self) -> int:
        """C, the number of classes."""
        return len(self._counts)

    @property
    def probs(self) -> Tensor:
        """[C] float64, pi: each class's share of all labels. Sums to 1; 0 for a class without samples."""
        smoothed = self._smoothed_counts()
        return torch.from_numpy(smoothed / smoothed.sum())

    @property
    def log_probs(self) -> Tensor:
        """[C] float64, log pi. Raises if a class has no samples and the prior is not smoothed."""
        smoothed = self._smoothed_counts()
        empty = np.flatnonzero(smoothed == 0)
        if empty.size:
            others = f" (and {empty.size - 1} more)" if empty.size > 1 else ""
            raise ValueError(
                f"ClassPrior: class {empty[0]}{others} has no samples, so log pi does not exist; "
                "drop it or use prior.smoothed(1)."
            )
        return torch.from_numpy(np.log(smoothed) - math.log(smoothed.sum()))

    @property
    def rates(self) -> Tensor:
        """[C] float64, the share of samples that carry each label. The same as ``probs`` for one label per sample."""
        pseudo_samples = self.pseudocount * self.num_classes
        return torch.from_numpy(self._smoothed_counts() / (self.num_samples + pseudo_samples))

    @property
    def imbalance(self) -> float:
        """Largest over smallest count (after smoothing); infinite if a class has no samples."""
        smoothed = self._smoothed_counts()
        smallest = float(smoothed.min())
        return float(smoothed.max()) / smallest if smallest > 0 else math.inf

    def smoothed(self, pseudocount: float = 1.0) -> ClassPrior:
        """Add ``pseudocount`` to every class before taking probabilities (Laplace's rule for 1).

        >>> ClassPrior.from_counts([3, 0]).smoothed(1).probs.tolist()
        [0.8, 0.2]
        """
        if not (math.isfinite(pseudocount) and pseudocount >= 0):
            raise ValueError(f"ClassPrior.smoothed: pseudocount must be a finite number >= 0. Got {pseudocount}.")
        return ClassPrior(self._counts, self.num_samples, self.pseudocount + pseudocount)

    def groups(self, head: int = 100, tail: int = 20) -> dict[str, Tensor]:
        """Class indices of the head (``count >= head``), tail (``count < tail``) and torso (between).

        The defaults are the "many / medium / few" of Kang et al. (2020), with the ends as in section 5 of "ELM" and
        section 5.1 of "Disentangling sampling and labeling bias". "Long-tail learning via logit adjustment" has a
        class of exactly ``tail`` samples in the tail instead (section 6.2), or in both groups (Figure 4).

        >>> {k: v.tolist() for k, v in ClassPrior.from_counts([500, 100, 50, 20, 1]).groups().items()}
        {'head': [0, 1], 'torso': [2, 3], 'tail': [4]}
        """
        if not tail < head:
            raise ValueError(f"ClassPrior.groups: tail must be below head. Got tail={tail}, head={head}.")
        return self._three_groups(self._counts >= head, self._counts < tail)

    @property
    def has_useful_groups(self) -> bool:
        """Whether :meth:`groups` say more than the classes: not for fewer than 6, nor for up to 10 in one group.

        >>> ClassPrior.from_counts([900, 100]).has_useful_groups
        False
        """
        num_groups = sum(len(classes) > 0 for classes in self.groups().values())
        return self.num_classes >= FEWEST_GROUPED and (num_groups > 1 or self.num_classes > MOST_NAMED)

    def quantile_groups(self, head: float = 0.66, tail: float = 0.33) -> dict[str, Tensor]:
        """Groups by quantiles of the class counts: head above the upper one, tail up to the lower one.

        As in section 5.2 of "Disentangling sampling and labeling bias". With many equal counts the groups are
        of unequal size, and the tail takes the classes that lie on its quantile.

        >>> {k: v.tolist() for k, v in ClassPrior.from_counts([9, 5, 1]).quantile_groups().items()}
        {'head': [0], 'torso': [1], 'tail': [2]}
        """
        if not 0 <= tail <= head <= 1:
            raise ValueError(f"ClassPrior.quantile_groups: needs 0 <= tail <= head <= 1. Got {tail=}, {head=}.")
        low, high = np.quantile(self._counts, [tail, head])
        is_tail = self._counts <= low
        return self._three_groups((self._counts > high) & ~is_tail, is_tail)

    def inverse_propensities(self, a: float = 0.55, b: float = 1.5) -> Tensor:
        """[C] float64 one over the chance that a label was noticed: see ``longtail.metrics.inverse_propensities``."""
        for name, value in (("a", a), ("b", b)):
            if not 0 <= value < float("inf"):
                raise ValueError(f"inverse_propensities: {name} must be a finite number of at least 0. Got {value}.")
        counts = self.counts.double()
        if b == 0 and bool((counts == 0).any()):
            raise ValueError("inverse_propensities: b must be above 0 where a label has no samples. Got 0.")
        return 1 + (math.log(self.num_samples) - 1) * ((b + 1) / (counts + b)) ** a

    def rarest(self, k: int) -> Tensor:
        """Indices of the ``k`` classes with the fewest samples, rarest first; ties by index.

        >>> ClassPrior.from_counts([9, 1, 5, 1]).rarest(2).tolist()
        [1, 3]
        """
        if not 1 <= k <= self.num_classes:
            raise ValueError(f"ClassPrior.rarest: k must be in 1..{self.num_classes}. Got {k}.")
        return torch.from_numpy(np.argsort(self._counts, kind="stable")[:k].copy())

    def all_reduce(self, group: Any = None) -> ClassPrior:
        """The prior of all processes together. Without a process group: this prior."""
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return self
        device = "cuda" if distributed.get_backend(group) == "nccl" else "cpu"
        sizes = torch.tensor([self.num_classes, -self.num_classes], device=device)
        distributed.all_reduce(sizes, op=distributed.ReduceOp.MAX, group=group)
        largest, smallest = int(sizes[0]), -int(sizes[1])
        if largest != smallest:
            raise ValueError(
                f"ClassPrior.all_reduce: every process must have the same number of classes. "
                f"Got {smallest} to {largest}; pass num_classes."
            )
        total = torch.from_numpy(np.append(self._counts, self.num_samples)).to(device)
        distributed.all_reduce(total, group=group)
        merged = total.cpu().numpy()
        return ClassPrior(merged[:-1].copy(), int(merged[-1]), self.pseudocount)

    def __add__(self, other: object) -> ClassPrior:
        if not isinstance(other, ClassPrior):
            return NotImplemented
        if (self.num_classes, self.pseudocount) != (other.num_classes, other.pseudocount):
            raise ValueError(
                f"ClassPrior: only priors with equal classes and smoothing can be added. Got {self!r} and {other!r}."
            )
        return ClassPrior(self._counts + other._counts, self.num_samples + other.num_samples, self.pseudocount)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClassPrior):
            return NotImplemented
        same_scalars = (self.num_samples, self.pseudocount) == (other.num_samples, other.pseudocount)
        return same_scalars and np.array_equal(self._counts, other._counts)

    def __hash__(self) -> int:
        return hash((self._counts.tobytes(), self.num_samples, self.pseudocount))

    def __repr__(self) -> str:
        smoothing = f", pseudocount={self.pseudocount:g}" if self.pseudocount else ""
        return (
            f"ClassPrior(num_classes={self.num_classes}, num_samples={self.num_samples}, "
            f"imbalance={self.imbalance:g}{smoothing})"
        )

    def _smoothed_counts(self) -> npt.NDArray[np.float64]:
        return self._counts + np.float64(self.pseudocount)

    def _three_groups(self, is_head: npt.NDArray[np.bool_], is_tail: npt.NDArray[np.bool_]) -> dict[str, Tensor]:
        masks = {"head": is_head, "torso": ~is_head & ~is_tail, "tail": is_tail}
        return {name: torch.from_numpy(np.flatnonzero(mask)) for name, mask in masks.items()}


def check_prior(prior: Any) -> None:
    """Raise unless it is a ``ClassPrior``, and not the labels or counts that one is made of."""
    if not isinstance(prior, ClassPrior):
        raise TypeError(
            f"prior must be a ClassPrior. Got {type(prior).__name__}; make one with ClassPrior.from_labels, "
            "from_counts or from_indicator."
        )


def _check_order(counts: Any) -> None:
    """Raise for counts by name: their order need not be that of the classes."""
    if isinstance(counts, Mapping):
        raise TypeError(
            f"ClassPrior: counts must be a vector in the order of the classes. Got a {type(counts).__name__}; "
            "pass [counts[name] for name in classes]."
        )
    index = getattr(counts, "index", None)
    if getattr(index, "is_monotonic_increasing", True) is False:
        raise ValueError(
            "ClassPrior: counts must be in the order of the classes. Got a series whose index is not sorted; "
            "use counts.sort_index() if the classes are sorted by name or number."
        )


def _check_total(num_samples: float) -> None:
    if num_samples >= 2**63:
        raise ValueError(f"ClassPrior: counts must add up to less than 2^63. Got {num_samples:g}.")


def _count(labels: IntArray, num_classes: int | None) -> IntArray:
    if labels.size == 0:
        raise ValueError("ClassPrior: there must be at least one labeled sample. Got none.")
    low, high = int(labels.min()), int(labels.max())
    size = high + 1 if num_classes is None else num_classes
    if low < 0 or high >= size:
        wrong = low if low < 0 else high
        wanted = "at least 0" if num_classes is None else f"in 0..{size - 1}"
        raise ValueError(f"ClassPrior: labels must be {wanted}. Got {wrong}.")
    if num_classes is None and size > MANY_CLASSES:
        check_memory(8 * size, f"ClassPrior: counts of {size:,} classes, by the largest label,")
    return np.bincount(labels, minlength=size).astype(np.int64)
