"""Sparse rows of features, such as the words of texts: what a sparse data set holds and what its batches are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["SparseRows", "locate_rows"]


@dataclass(frozen=True, eq=False, slots=True)
class SparseRows:
    """Rows of a sparse matrix in the three vectors that ``torch.nn.functional.embedding_bag`` takes.

    A batch of rows is again ``SparseRows``, so a model sees one type. PyTorch's own sparse CSR tensors do not select
    rows.

    >>> from scipy.sparse import csr_array
    >>> rows = SparseRows.from_scipy(csr_array([[0.0, 2.0], [0.0, 0.0], [3.0, 4.0]]))
    >>> batch = rows.batch(torch.tensor([2, 0]))
    >>> batch.columns.tolist(), batch.values.tolist(), batch.offsets.tolist()
    ([0, 1, 1], [3.0, 4.0, 2.0], [0, 2, 3])
    """

    offsets: Tensor
    """[N + 1] int64; row i is at offsets[i] to offsets[i + 1] of the other two."""
    columns: Tensor
    """[nonzeros] int64 feature indices."""
    values: Tensor
    """[nonzeros] feature values."""
    num_columns: int
    """How many features there are."""

    @classmethod
    def from_scipy(cls, matrix: Any) -> SparseRows:
        """Take over a SciPy sparse matrix or array [N, D]; values become float32."""
        csr = matrix.tocsr()
        return cls(
            torch.from_numpy(csr.indptr.astype(np.int64)),
            torch.from_numpy(csr.indices.astype(np.int64)),
            torch.from_numpy(csr.data.astype(np.float32)),
            int(csr.shape[1]),
        )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one dense row."""
        return (self.num_columns,)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def batch(self, indices: Tensor) -> SparseRows:
        """The rows at ``indices``, in that order."""
        offsets, places = locate_rows(self.offsets, indices)
        return SparseRows(offsets, self.columns[places], self.values[places], self.num_columns)

    def take(self, indices: Tensor) -> SparseRows:
        """The same as :meth:`batch`: sparse rows are in memory."""
        return self.batch(indices)

    def to(self, *args: Any, **kwargs: Any) -> SparseRows:
        """These rows on another device, as ``Tensor.to``; a dtype applies to the values alone."""
        values = self.values.to(*args, **kwargs)
        return SparseRows(self.offsets.to(values.device), self.columns.to(values.device), values, self.num_columns)

    def dense(self) -> Tensor:
        """[N, D], the matrix itself."""
        rows = torch.arange(len(self), device=self.offsets.device).repeat_interleave(self.offsets.diff())
        matrix = self.values.new_zeros(len(self), self.num_columns)
        return matrix.index_put_((rows, self.columns), self.values, accumulate=True)


def locate_rows(offsets: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Where rows of several lengths, stored one after the other, are: for a batch of them.

    Args:
        offsets: [N + 1]; row i is at offsets[i] to offsets[i + 1].
        indices: [n] the rows that are wanted.

    Returns:
        [n + 1] offsets of the batch, and where each of its elements was.

    >>> locate_rows(torch.tensor([0, 3, 5]), torch.tensor([1, 0]))
    (tensor([0, 2, 5]), tensor([3, 4, 0, 1, 2]))
    """
    starts = offsets[indices]
    lengths = offsets[indices + 1] - starts
    ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    # The place within the batch, moved by its row's shift.
    return ends, torch.arange(int(ends[-1])) + (starts - ends[:-1]).repeat_interleave(lengths)
